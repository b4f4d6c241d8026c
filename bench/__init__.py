"""Scripts that put tierstore beside its peers and beside the machine's limits; results lie in results/."""
