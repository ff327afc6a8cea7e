"""Cases of the primitives: strategies that draw them and enumerations up to a bound."""
