// Package notify delivers one message of the message lane: a signed webhook or an e-mail.
//
// Messages tell people and systems that something waits or has happened. They are retried by the caller until they are
// delivered, so a receiver can see one twice and recognises it by its id: webhook-id in a webhook, Message-ID in an
// e-mail. They carry ids and one consequence sentence, never effect content.
package notify

import (
	"errors"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/egress"
)

// DefaultTimeout bounds one delivery, from the dial to the answer.
const DefaultTimeout = 15 * time.Second

// Message is one message to one receiver. ID is the same for every attempt.
type Message struct {
	ID        string // printable ASCII without a full stop, for example a UUID
	Type      string // for example "approval.requested"
	Tenant    string
	Body      []byte // JSON; what a webhook delivers
	To        string // a person's address; e-mail only
	Subject   string // e-mail only
	Text      string // plain text; e-mail only
	Timestamp time.Time
}

// Permanent says that this message can never be delivered: trying again is useless. Every other error of Send means
// that a later attempt may succeed.
type Permanent struct {
	Err *holdpoint.Error
}

// Error implements error.
func (p *Permanent) Error() string { return p.Err.Error() }

// Unwrap gives the *holdpoint.Error.
func (p *Permanent) Unwrap() error { return p.Err }

// Errors name the kind of failure and never quote what the network or the receiver said: a URL can carry a token, and a
// mail server's answer the recipient.

func permanent(sentence string, args ...any) error {
	return &Permanent{Err: holdpoint.Errorf(holdpoint.CodeInvalidRequest, sentence, args...)}
}

func later(sentence string, args ...any) *holdpoint.Error {
	return holdpoint.Errorf(holdpoint.CodeUnavailable, sentence, args...)
}

func misconfigured(sentence string, args ...any) *holdpoint.Error {
	return holdpoint.Errorf(holdpoint.CodeInvalidPolicy, sentence, args...)
}

// unreachable is the error of a connection that could not be opened or broke.
func unreachable(kind string, err error) error {
	var refused *egress.RefusedError
	if errors.As(err, &refused) {
		return later("the %s resolves to a %s address; allow its range or use a public address", kind, refused.Reason)
	}
	return later("the %s could not be reached; check its address and the network", kind)
}

// goodID reports whether id can stand in a header and in a signature whose parts are separated by full stops.
func goodID(id string) bool {
	for _, r := range id {
		if r <= ' ' || r > '~' || r == '.' || r == '<' || r == '>' || r == '@' {
			return false
		}
	}
	return id != "" && len(id) <= 200
}
