"""The simulated world and the contract suites, for those who write tiers, codecs, policies and devices."""
