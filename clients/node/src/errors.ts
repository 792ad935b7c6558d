/** Errors by reason, from the statuses of calls and from turns that fail. */

import { fromBinary } from "@bufbuild/protobuf";
import { anyUnpack } from "@bufbuild/protobuf/wkt";
import { type ServiceError, status as Code } from "@grpc/grpc-js";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "./contract/google/rpc/error_details_pb.js";
import { type Status, StatusSchema } from "./contract/google/rpc/status_pb.js";
import type { ErrorReason } from "./contract/slipstream/v1/errors_pb.js";

/**
 * Why a call or a turn failed: a reason of the server's, a gRPC status where gRPC itself ended the
 * call, or one that this package gives. A newer server may send a reason that is not listed here.
 */
export type Reason =
  | Exclude<keyof typeof ErrorReason, "UNSPECIFIED">
  | keyof typeof Code
  | "PLAINTEXT"
  | "REPLY_CLOSED"
  | "STREAM_LOST"
  | "TURN_LOST"
  | (string & {});

/** A field of the request that is wrong, and what would be right. */
export interface FieldViolation {
  readonly field: string;
  readonly description: string;
}

/** What an error says beside its code, reason and message. */
export interface ErrorDetails {
  metadata?: Record<string, string>;
  violations?: readonly FieldViolation[];
  retryAfterMs?: number | undefined;
  cause?: unknown;
}

/** A call or a turn that failed. Match on `reason`, never on the message. */
export class SlipstreamError extends Error {
  override readonly name = "SlipstreamError";
  /** More about the reason: which limit was met, which turn is in the way. */
  readonly metadata: Readonly<Record<string, string>>;
  /** The fields that are wrong, if the reason is INVALID_FIELDS. */
  readonly violations: readonly FieldViolation[];
  /** Milliseconds to wait before the same request is sent again, if the server says so. */
  readonly retryAfterMs: number | undefined;

  constructor(
    readonly code: Code,
    readonly reason: Reason,
    message: string,
    details: ErrorDetails = {},
  ) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.metadata = details.metadata ?? {};
    this.violations = details.violations ?? [];
    this.retryAfterMs = details.retryAfterMs;
  }

  /** True if the same request can succeed later. Send it with the same request id. */
  get retryable(): boolean {
    return this.code === Code.UNAVAILABLE || this.retryAfterMs !== undefined;
  }
}

/** Return the error of a status in a message: of a turn, or of a command of a chat. */
export function errorOfStatus(status: Status | undefined, cause?: unknown): SlipstreamError {
  const details: ErrorDetails = { cause };
  let reason: string | undefined;
  for (const any of status?.details ?? []) {
    const info = anyUnpack(any, ErrorInfoSchema);
    const bad = anyUnpack(any, BadRequestSchema);
    const delay = anyUnpack(any, RetryInfoSchema)?.retryDelay;
    if (info) [reason, details.metadata] = [info.reason, info.metadata];
    if (bad) details.violations = bad.fieldViolations.map(({ field, description }) => ({ field, description }));
    if (delay) details.retryAfterMs = Number(delay.seconds) * 1000 + delay.nanos / 1e6;
  }
  const code = status?.code && status.code in Code ? status.code : Code.UNKNOWN;
  return new SlipstreamError(code, reason ?? Code[code]!, status?.message ?? "", details);
}

/** Return the error of a call. Any other value that was thrown is returned as it is. */
export function errorOfCall(thrown: unknown): unknown {
  if (!isServiceError(thrown)) return thrown;
  const [packed] = thrown.metadata.get("grpc-status-details-bin");
  if (packed instanceof Buffer) {
    try {
      return errorOfStatus(fromBinary(StatusSchema, packed), thrown);
    } catch {
      // details that cannot be read: the status alone says enough
    }
  }
  return new SlipstreamError(thrown.code, Code[thrown.code] ?? "UNKNOWN", thrown.details, { cause: thrown });
}

function isServiceError(thrown: unknown): thrown is ServiceError {
  return thrown instanceof Error && "code" in thrown && "metadata" in thrown && "details" in thrown;
}
