"""The store as a gRPC service, and its client. The only room that knows grpc and protobuf."""
