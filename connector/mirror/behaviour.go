package mirror

import (
	"encoding/json"
	"net/http"
	"time"
)

// Cut says how a connection is broken instead of being answered.
type Cut int

// The cuts.
const (
	CutNever      Cut = iota // a complete answer
	CutBeforeRead            // closed before the body of the request was read
	CutSilently              // closed in order, without an answer
	CutReset                 // reset, without an answer
	CutTruncated             // closed in order in the middle of a 200 answer's body
	CutResetBody             // reset in the middle of a 200 answer's body
)

// Behaviour is how the provider treats one write. The order is: commit, wait, then answer or cut.
type Behaviour struct {
	Commit bool // the write takes effect
	ID     string
	Wait   time.Duration
	Cut    Cut
	Status int
	Body   string // "" gives {"id": …} for a committed write
	Header map[string]string
}

// OK commits and answers 200 with {"id": id}. An empty id is replaced by a new one.
func OK(id string) Behaviour { return Behaviour{Commit: true, ID: id, Status: http.StatusOK} }

// Status answers without committing.
func Status(code int, body string, header map[string]string) Behaviour {
	return Behaviour{Status: code, Body: body, Header: header}
}

// Committing is b, but the write takes effect: the provider commits and then reports what b says.
func (b Behaviour) Committing() Behaviour {
	b.Commit = true
	return b
}

// AcceptThenStall commits, waits for d and closes without an answer.
func AcceptThenStall(d time.Duration) Behaviour {
	return Behaviour{Commit: true, Wait: d, Cut: CutSilently}
}

// AcceptThenClose commits and closes without an answer.
func AcceptThenClose() Behaviour { return Behaviour{Commit: true, Cut: CutSilently} }

// AcceptThenReset commits and resets the connection.
func AcceptThenReset() Behaviour { return Behaviour{Commit: true, Cut: CutReset} }

// TruncatedBody commits, answers 200 and closes in the middle of the body.
func TruncatedBody() Behaviour { return Behaviour{Commit: true, Cut: CutTruncated} }

// ResetMidBody commits, answers 200 and resets the connection in the middle of the body.
func ResetMidBody() Behaviour { return Behaviour{Commit: true, Cut: CutResetBody} }

// CloseBeforeRead closes the connection without reading the body. The write does not arrive.
func CloseBeforeRead() Behaviour { return Behaviour{Cut: CutBeforeRead} }

// LateAnswer commits and answers 200 after d.
func LateAnswer(d time.Duration, id string) Behaviour {
	b := OK(id)
	b.Wait = d
	return b
}

func (b Behaviour) text(id string) string {
	if b.Body != "" || id == "" {
		return b.Body
	}
	out, err := json.Marshal(map[string]string{"id": id})
	if err != nil {
		panic(err) // a map of strings is always JSON
	}
	return string(out)
}
