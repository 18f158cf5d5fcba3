package holdpoint

import "fmt"

// Code is the stable, machine-readable name of an error. The list is closed: httpserver maps each to one HTTP status
// and docs/errors.md says what to do about each.
type Code string

// The codes. A comment names the HTTP status that httpserver gives.
const (
	CodeInvalidRequest      Code = "invalid_request"        // 400
	CodeInvalidJSON         Code = "invalid_json"           // 400
	CodeTooDeep             Code = "too_deep"               // 400
	CodeInvalidKey          Code = "invalid_key"            // 400
	CodeUnauthenticated     Code = "unauthenticated"        // 401
	CodeForbidden           Code = "forbidden"              // 403
	CodeInsufficientScope   Code = "insufficient_scope"     // 403
	CodeCrossOrigin         Code = "cross_origin"           // 403
	CodeBadNonce            Code = "bad_nonce"              // 403
	CodePasswordChange      Code = "password_change"        // 403
	CodeNotFound            Code = "not_found"              // 404
	CodeUnknownWorkflow     Code = "unknown_workflow"       // 404
	CodeBusy                Code = "busy"                   // 409
	CodeLeaseLost           Code = "lease_lost"             // 409
	CodeLeaseOtherExecution Code = "lease_other_execution"  // 409
	CodeInProgress          Code = "in_progress"            // 409
	CodeUncertain           Code = "uncertain"              // 409
	CodeStaleDigest         Code = "stale_digest"           // 409
	CodeAlreadyDecided      Code = "already_decided"        // 409
	CodePolicyMoved         Code = "policy_moved"           // 409
	CodeNotAllowedNow       Code = "not_allowed_now"        // 409: the state does not permit it
	CodeNoPolicy            Code = "no_active_policy"       // 409
	CodeExists              Code = "exists"                 // 409
	CodeTooLarge            Code = "too_large"              // 413
	CodeUnsupportedMedia    Code = "unsupported_media_type" // 415
	CodeMismatch            Code = "mismatch"               // 422
	CodeDerivedKey          Code = "derived_key"            // 422
	CodeInvalidPolicy       Code = "invalid_policy"         // 422
	CodeInitiatorMissing    Code = "initiator_missing"      // 422
	CodeReasonRequired      Code = "reason_required"        // 422
	CodeRender              Code = "render"                 // 422: policy could not render; it stays inside the server
	CodeRateLimited         Code = "rate_limited"           // 429
	CodeInternal            Code = "internal"               // 500
	CodeUnavailable         Code = "unavailable"            // 503: the store cannot be reached, or contention; repeat the call
)

// Error is the one error type that crosses package borders. Message is one sentence, in English, that says what to do
// next; it never carries content, a token or a secret (I10). Detail adds machine-readable members to the problem
// document (for example "pointer", "retry_after", "standing").
type Error struct {
	Code    Code
	Message string
	Detail  map[string]any
	cause   error
}

// Errorf makes an Error from a code and a sentence.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Wrap returns a copy of e that carries cause for errors.Is and errors.As. The cause is logged, never shown.
func (e *Error) Wrap(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// With returns a copy of e with one more detail member.
func (e *Error) With(name string, value any) *Error {
	c := *e
	c.Detail = make(map[string]any, len(e.Detail)+1)
	for k, v := range e.Detail {
		c.Detail[k] = v
	}
	c.Detail[name] = value
	return &c
}

// Error implements error.
func (e *Error) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Message, e.cause)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether target is an *Error with the same code, so that errors.Is(err, &Error{Code: c}) works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}
