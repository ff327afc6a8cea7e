"""Formulas in the place of flash-attn's functions, which need a GPU: for packages that call these on parts of a sequence."""

from __future__ import annotations

from types import SimpleNamespace

import torch


def scores(q, k, scale, causal):
    """Of tensors of the order batch, sequence, heads, features; the last query has the last key, and is the last to have it."""
    k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    products = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if not causal:
        return products
    allowed = torch.ones(products.shape[-2:], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
    return products.masked_fill(~allowed, -torch.inf)


def attended(q, k, v, scale, causal):
    """The result, and the logarithms of the sums of exponentials of the scores."""
    products = scores(q, k, scale, causal)
    values = v.repeat_interleave(q.shape[2] // v.shape[2], 2)
    return torch.einsum("bhqk,bkhd->bqhd", products.softmax(-1), values), products.logsumexp(-1)


def write_gradients(dout, q, k, v, out, softmax_lse, dq, dk, dv, scale, causal):
    """Writes into dq, dk and dv; `out` and `softmax_lse` are those of all keys."""
    shared = q.shape[2] // k.shape[2]
    whole_k, whole_v = k.repeat_interleave(shared, 2), v.repeat_interleave(shared, 2)
    weights = (scores(q, k, scale, causal) - softmax_lse[..., None].to(q.dtype)).exp()
    inner = (dout * out).sum(-1).transpose(1, 2)[..., None]
    of_scores = weights * (torch.einsum("bqhd,bkhd->bhqk", dout, whole_v) - inner) * scale
    dq.copy_(torch.einsum("bhqk,bkhd->bqhd", of_scores, whole_k))
    for gradient, whole in (
        (dk, torch.einsum("bhqk,bqhd->bkhd", of_scores, q)),
        (dv, torch.einsum("bhqk,bqhd->bkhd", weights, dout)),
    ):
        gradient.copy_(whole.unflatten(2, (k.shape[2], shared)).sum(3))


# The packages read the names of arguments off these functions.
def _flash_attn_forward(
    q,
    k,
    v,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left,
    window_size_right,
    softcap,
    alibi_slopes,
    return_softmax,
):
    return *attended(q, k, v, softmax_scale, causal), None, None


def _flash_attn_backward(
    dout,
    q,
    k,
    v,
    out,
    softmax_lse,
    dq,
    dk,
    dv,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left,
    window_size_right,
    softcap,
    alibi_slopes,
    deterministic,
    rng_state=None,
):
    write_gradients(dout, q, k, v, out, softmax_lse, dq, dk, dv, softmax_scale, causal)


def documents(cu_seqlens_q, cu_seqlens_k):
    """Slices of the queries and keys of each document."""
    for ends in zip(*(x.unfold(0, 2, 1).tolist() for x in (cu_seqlens_q, cu_seqlens_k)), strict=True):
        yield tuple(slice(*each) for each in ends)


def _flash_attn_varlen_forward(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left,
    window_size_right,
    softcap,
    alibi_slopes,
    return_softmax,
):
    out, lse = torch.empty_like(q), q.new_empty(q.shape[1::-1])
    for own, other in documents(cu_seqlens_q, cu_seqlens_k):
        results = attended(q[None, own], k[None, other], v[None, other], softmax_scale, causal)
        out[own], lse[:, own] = results[0][0], results[1][0]
    return out, lse, None, None


def _flash_attn_varlen_backward(
    dout,
    q,
    k,
    v,
    out,
    softmax_lse,
    dq,
    dk,
    dv,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left,
    window_size_right,
    softcap,
    alibi_slopes,
    deterministic,
    rng_state=None,
):
    for own, other in documents(cu_seqlens_q, cu_seqlens_k):
        inputs = q[None, own], k[None, other], v[None, other]
        gradients = dq[None, own], dk[None, other], dv[None, other]
        of_all_keys = out[None, own], softmax_lse[None, :, own]
        write_gradients(dout[None, own], *inputs, *of_all_keys, *gradients, softmax_scale, causal)


_interface = SimpleNamespace(
    _flash_attn_forward=_flash_attn_forward,
    _flash_attn_backward=_flash_attn_backward,
    _flash_attn_varlen_forward=_flash_attn_varlen_forward,
    _flash_attn_varlen_backward=_flash_attn_varlen_backward,
)
MODULES = {
    "flash_attn": SimpleNamespace(flash_attn_interface=_interface),
    "flash_attn.flash_attn_interface": _interface,
}
"""For packages that import flash-attn's functions."""
