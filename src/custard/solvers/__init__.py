"""From an IBMDP to a policy over bounds. One file an algorithm."""
