"""The mathematics, as data: partitions, layouts, spaces, operators, programs and the arrays they act on."""
