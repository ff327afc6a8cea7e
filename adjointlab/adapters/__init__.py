"""Conventions of other libraries, mapped to operators and spaces; one module each, which imports its library when it is used."""
