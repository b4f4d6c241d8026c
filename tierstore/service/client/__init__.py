"""The client's side of the service: the store's verbs over a connection, light enough for any process."""
