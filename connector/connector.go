// Package connector is the contract between Holdpoint and the systems it writes to: send one effect, and find out what
// became of it.
//
// A connector does not retry, does not decide and does not store. It renders a request, puts it on the wire once, and
// reports where the wire was when the request ended. What the answer means for the effect is decided by the failure
// matrix; a connector only says what it knows, and says holdpoint.Unclear whenever it does not know.
package connector

import (
	"context"
	"time"

	"github.com/holdpoint/holdpoint"
)

// Vars is all that a request may be rendered from. The same Vars always render the same request.
type Vars struct {
	Key       string // the provider-facing idempotency key, the same for every attempt of an effect
	Reference string // our mark on the provider's object, by which a look-up finds it
	Target    string // the recipient or object, as policy rendered it
	Payload   []byte // the approved payload, JSON
	Slot      string // the logical name of the effect inside its run
	Type      string // the effect type, for example "crm.note"
	RunID     string
}

// Connector sends effects of one configured kind to one provider. It is safe for concurrent use.
type Connector interface {
	// Prepare renders the request for v. It is pure: no byte leaves the machine, whatever it returns. An error is a
	// *holdpoint.Error and means a refusal in phase P0; the same v is refused every time.
	Prepare(v Vars) (Call, error)

	// Find asks the provider what became of an effect whose outcome is unknown. It writes nothing. It never answers
	// Absent when it could not ask.
	Find(ctx context.Context, v Vars) Finding
}

// Call is one rendered request.
type Call interface {
	// WireHash identifies what the provider would receive, without secrets. A repetition under the same key is allowed
	// only if the hash is the same.
	WireHash() string

	// Send puts the request on the wire once; nothing under it resends. No byte is written at or after sendBefore, also
	// when the process was stopped in between: a request not begun by then is holdpoint.Rejected in phase P0 with class
	// local_deadline. When ctx ends, the outcome is what the phase says. Send returns after the exchange has ended.
	Send(ctx context.Context, sendBefore time.Time) holdpoint.Outcome
}

// The states of a Finding.
const (
	Found       = "found"       // exactly one object carries our mark
	Absent      = "absent"      // the provider answered and holds no such object, as of now
	Unclear     = "unclear"     // no usable answer, or one that proves neither
	Unsupported = "unsupported" // this connector has no look-up
)

// Finding is the answer of one look-up. Absent is one read at one moment: it proves absence only under the rules of the
// look-up lag. Detail is short and safe to log; it never carries content.
type Finding struct {
	State      string
	ProviderID string // the provider's id of the object, if found and known
	Detail     string
	Matches    int // the number of objects found; 0 unless State is Found
}
