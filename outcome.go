package holdpoint

import "time"

// Result is the three-valued answer to "did the provider accept this write?".
type Result string

// The results. Rejected means provably not accepted; everything that cannot be proved is Unclear.
const (
	Accepted Result = "accepted"
	Rejected Result = "rejected"
	Unclear  Result = "unknown"
)

// Phase says where the wire was when a request ended (FAILURES 2).
type Phase string

// The phases.
const (
	PhaseLocal    Phase = "P0" // refused on this machine, no byte left
	PhaseConnect  Phase = "P1" // DNS, TCP or TLS failed before any request byte
	PhasePartial  Phase = "P2" // the request was partly written
	PhaseWritten  Phase = "P3" // fully written, no status line
	PhaseStatus   Phase = "P4" // status line seen, body lost or cut off
	PhaseComplete Phase = "P5" // complete response
	PhaseSettle   Phase = "P6" // response handled, our own commit failed
)

// FailureClass names a row of the failure matrix (policy.Matrix).
type FailureClass string

// The failure classes; "" means no failure.
const (
	ClassNone           FailureClass = ""
	ClassConnect        FailureClass = "connect"
	ClassLocalDeadline  FailureClass = "local_deadline"
	ClassAmbiguous      FailureClass = "ambiguous"
	ClassKeyWindowOver  FailureClass = "key_window_over"
	ClassUnreferenced   FailureClass = "unreferenced"
	ClassThrottled      FailureClass = "throttled"
	ClassOverloaded     FailureClass = "overloaded"
	ClassProviderError  FailureClass = "provider_error"
	ClassInProgress     FailureClass = "in_progress"
	ClassKeyConflict    FailureClass = "key_conflict"
	ClassAlreadyExists  FailureClass = "already_exists"
	ClassCredentials    FailureClass = "credentials"
	ClassPermission     FailureClass = "permission"
	ClassInvalidData    FailureClass = "invalid_data"
	ClassDeclined       FailureClass = "declined"
	ClassGone           FailureClass = "gone"
	ClassQuota          FailureClass = "quota"
	ClassPartial        FailureClass = "partial"
	ClassRedirect       FailureClass = "redirect"
	ClassTLS            FailureClass = "tls"
	ClassMailTemporary  FailureClass = "mail_temporary"
	ClassMailFinalDot   FailureClass = "mail_final_dot"
	ClassMailPermanent  FailureClass = "mail_permanent"
	ClassBounced        FailureClass = "bounced"
	ClassModelTransport FailureClass = "model_transport"
	ClassModelTimeout   FailureClass = "model_timeout"
	ClassModelThrottled FailureClass = "model_throttled"
	ClassNotJSON        FailureClass = "not_json"
	ClassSchema         FailureClass = "schema"
	ClassTruncated      FailureClass = "truncated"
	ClassRefusal        FailureClass = "refusal"
	ClassContextTooLong FailureClass = "context_too_long"
	ClassSoftFailure    FailureClass = "soft_failure"
	ClassBudget         FailureClass = "budget"
	ClassModelMissing   FailureClass = "model_missing"
	ClassLeaseLost      FailureClass = "lease_lost"
	ClassCrash          FailureClass = "crash"
	ClassExpired        FailureClass = "expired"
	ClassSwitchedOff    FailureClass = "switched_off"
)

// Outcome is what a connector knows after one request on the wire. It carries no content: Detail is a short
// description that is safe to log (status code, error kind), never a body.
type Outcome struct {
	Result     Result
	Phase      Phase
	Class      FailureClass
	Status     int           // HTTP status or SMTP code; 0 if none was seen
	ProviderID string        // the provider's own id of the object, if it gave one
	RetryAfter time.Duration // what the provider asked for; 0 if nothing, never negative
	Detail     string
	Took       time.Duration
}
