// Copies, or adds, a list of boxes in one launch: how halo faces and repartition blocks are packed, unpacked and summed.
//
// A box is a pair of strided views of one shape, the source and the target. Its elements are numbered in row-major order, and its
// blocks are a run of the grid's: block k of a box has the elements from k * blockDim.x * PER_THREAD on.
//
//     blockIdx.x      0   1   2 | 3   4 | 5            boxes of 3, 2 and 1 blocks: first_block is 0, 3, 5
//
// Targets of one launch are disjoint, so no order of its threads matters. Boxes of one launch are copied in words of different widths, as
// their addresses and strides allow: all threads of a block work on one box, so none waits for another branch. This file needs no header: NVRTC compiles it as it is, and
// the tests compile it for the host too.

#define MAX_DIMS 6
#define MAX_BOXES 16
#define PER_THREAD 4

struct Box {
    const char* source;
    char* target;
    long long shape[MAX_DIMS];           // the last dimension varies fastest; of the first `dims` entries
    long long source_strides[MAX_DIMS];  // in bytes; negative or zero ones too
    long long target_strides[MAX_DIMS];
    long long size;                      // number of elements
    int first_block;
    int dims;
    int width;  // of a word in bytes, where boxes are copied; sums have that of their kernel
    int padding;
};

struct Boxes {
    int count;
    int padding;
    Box box[MAX_BOXES];
};

// Half precisions, as 16 bits. A sum is computed in float and rounded to nearest, ties to even.

__device__ inline float as_float(unsigned bits) {
    union { unsigned bits; float value; } both;
    both.bits = bits;
    return both.value;
}

__device__ inline unsigned as_bits(float value) {
    union { float value; unsigned bits; } both;
    both.value = value;
    return both.bits;
}

struct bfloat16 {
    unsigned short bits;
    __device__ float widened() const { return as_float((unsigned)bits << 16); }
    __device__ static bfloat16 rounded(float value) {
        unsigned wide = as_bits(value);
        bfloat16 result;
        if ((wide & 0x7fffffffu) > 0x7f800000u) {
            result.bits = (unsigned short)((wide >> 16) | 0x40u);  // a quiet NaN: rounding could carry it to infinity
        } else {
            result.bits = (unsigned short)((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16);
        }
        return result;
    }
};

struct float16 {
    unsigned short bits;
    __device__ float widened() const {
        unsigned sign = (unsigned)(bits & 0x8000u) << 16, exponent = (bits >> 10) & 0x1fu, fraction = bits & 0x3ffu;
        if (exponent == 0x1fu) return as_float(sign | 0x7f800000u | (fraction << 13));
        if (exponent) return as_float(sign | ((exponent + 112u) << 23) | (fraction << 13));
        float magnitude = (float)fraction * 5.9604644775390625e-8f;  // subnormal: multiples of 2^-24
        return sign ? -magnitude : magnitude;
    }
    __device__ static float16 rounded(float value) {
        unsigned wide = as_bits(value), sign = (wide >> 16) & 0x8000u, magnitude = wide & 0x7fffffffu;
        float16 result;
        if (magnitude > 0x7f800000u) {
            result.bits = (unsigned short)(sign | 0x7e00u);
        } else if (magnitude >= 0x477ff000u) {  // 65520 and more
            result.bits = (unsigned short)(sign | 0x7c00u);
        } else if (magnitude >= 0x38800000u) {  // normal: 2^-14 and more
            unsigned shifted = magnitude - 0x38000000u;
            result.bits = (unsigned short)(sign | ((shifted + 0xfffu + ((shifted >> 13) & 1u)) >> 13));
        } else {
            // Adding 2^-1 makes the hardware round to multiples of 2^-24, which are then the last bits of the sum.
            unsigned units = as_bits(as_float(magnitude) + 0.5f) - as_bits(0.5f);
            result.bits = (unsigned short)(sign | units);
        }
        return result;
    }
};

template <typename Part>
struct Complex {
    Part real, imag;
};

struct Sixteen {
    unsigned long long low, high;
};

template <typename Element>
struct Copy {
    __device__ static void apply(Element& target, const Element& source) { target = source; }
};

template <typename Element>
struct Add {
    __device__ static void apply(Element& target, const Element& source) { target += source; }
};

template <>
struct Add<float16> {
    __device__ static void apply(float16& target, const float16& source) {
        target = float16::rounded(target.widened() + source.widened());
    }
};

template <>
struct Add<bfloat16> {
    __device__ static void apply(bfloat16& target, const bfloat16& source) {
        target = bfloat16::rounded(target.widened() + source.widened());
    }
};

template <typename Part>
struct Add<Complex<Part>> {
    __device__ static void apply(Complex<Part>& target, const Complex<Part>& source) {
        target.real += source.real;
        target.imag += source.imag;
    }
};

// `Index` has 32 bits where the box has fewer than 2^31 elements: a division by a number of 64 bits takes many times longer.
template <typename Element, template <typename> class Operation, typename Index>
__device__ inline void apply_to_element(const Box& box, Index element) {
    long long source = 0, target = 0;
    Index rest = element;
    for (int dim = box.dims - 1; dim > 0; --dim) {
        Index side = (Index)box.shape[dim], outer = rest / side, index = rest - outer * side;
        source += (long long)index * box.source_strides[dim];
        target += (long long)index * box.target_strides[dim];
        rest = outer;
    }
    source += (long long)rest * box.source_strides[0];
    target += (long long)rest * box.target_strides[0];
    Operation<Element>::apply(*(Element*)(box.target + target), *(const Element*)(box.source + source));
}

template <typename Element, template <typename> class Operation>
__device__ inline void apply_to_box(const Box& box) {
    long long block = (long long)blockIdx.x - box.first_block;
    long long element = block * blockDim.x * PER_THREAD + threadIdx.x;
    for (int turn = 0; turn < PER_THREAD && element < box.size; ++turn, element += blockDim.x) {
        if (box.size < (1ll << 31)) {
            apply_to_element<Element, Operation, unsigned>(box, (unsigned)element);
        } else {
            apply_to_element<Element, Operation, unsigned long long>(box, (unsigned long long)element);
        }
    }
}

__device__ inline const Box& box_of_block(const Boxes& boxes) {
    int number = 0;
    while (number + 1 < boxes.count && (int)blockIdx.x >= boxes.box[number + 1].first_block) ++number;
    return boxes.box[number];
}

// A copy asks for the size of an element alone.
__device__ inline void copy_box(const Box& box) {
    switch (box.width) {
        case 1: return apply_to_box<unsigned char, Copy>(box);
        case 2: return apply_to_box<unsigned short, Copy>(box);
        case 4: return apply_to_box<unsigned, Copy>(box);
        case 8: return apply_to_box<unsigned long long, Copy>(box);
        case 16: return apply_to_box<Sixteen, Copy>(box);
    }
}

#define KERNEL(name, work) \
    extern "C" __global__ void name(const Boxes boxes) { work(box_of_block(boxes)); }
#define ADD(Element) apply_to_box<Element, Add>

KERNEL(copy, copy_box)
KERNEL(add_float64, ADD(double))
KERNEL(add_float32, ADD(float))
KERNEL(add_float16, ADD(float16))
KERNEL(add_bfloat16, ADD(bfloat16))
KERNEL(add_complex128, ADD(Complex<double>))
KERNEL(add_complex64, ADD(Complex<float>))
KERNEL(add_int64, ADD(long long))
KERNEL(add_int32, ADD(int))
