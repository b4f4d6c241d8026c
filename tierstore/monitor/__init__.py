"""Observability of a running store: metrics for Prometheus, a status page, log lines and traces.

Started by the store if its settings ask for it. Reads the store, and changes nothing in it.
"""
