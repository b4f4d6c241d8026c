"""What a running store shows of itself: metrics for Prometheus, a status page, log lines and traces.

Started by the store where its settings say so; reads, and changes nothing.
"""
