/**
 * The public contract as protobuf-es generates it: messages, enums and methods. It needs no gRPC
 * library, so browsers can use it too, with Connect's gRPC-Web transport.
 */
export * from "./contract/google/rpc/error_details_pb.js";
export * from "./contract/google/rpc/status_pb.js";
export * from "./contract/slipstream/v1/acceptance_pb.js";
export * from "./contract/slipstream/v1/errors_pb.js";
export * from "./contract/slipstream/v1/generation_pb.js";
export * from "./contract/slipstream/v1/operator_pb.js";
export * from "./contract/slipstream/v1/orchestrator_pb.js";
export * from "./contract/slipstream/v1/sampling_pb.js";
export * from "./contract/slipstream/v1/session_pb.js";
export * from "./contract/slipstream/v1/status_pb.js";
export * from "./contract/slipstream/v1/trace_pb.js";
export * from "./contract/slipstream/v1/turn_pb.js";
