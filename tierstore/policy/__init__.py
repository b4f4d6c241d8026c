"""Policies: eviction (which block leaves a full tier) and admission (which block may enter a tier)."""
