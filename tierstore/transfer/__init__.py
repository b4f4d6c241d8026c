"""Movement: links between neighbouring tiers, and the engine with the one lock."""
