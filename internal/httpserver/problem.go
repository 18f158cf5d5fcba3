package httpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/holdpoint/holdpoint"
)

// Statuses gives the one HTTP status of each error code. It is total over the codes of package holdpoint and read-only.
var Statuses = map[holdpoint.Code]int{
	holdpoint.CodeInvalidRequest:      http.StatusBadRequest,
	holdpoint.CodeInvalidJSON:         http.StatusBadRequest,
	holdpoint.CodeTooDeep:             http.StatusBadRequest,
	holdpoint.CodeInvalidKey:          http.StatusBadRequest,
	holdpoint.CodeUnauthenticated:     http.StatusUnauthorized,
	holdpoint.CodeForbidden:           http.StatusForbidden,
	holdpoint.CodeInsufficientScope:   http.StatusForbidden,
	holdpoint.CodeCrossOrigin:         http.StatusForbidden,
	holdpoint.CodeBadNonce:            http.StatusForbidden,
	holdpoint.CodePasswordChange:      http.StatusForbidden,
	holdpoint.CodeNotFound:            http.StatusNotFound,
	holdpoint.CodeUnknownWorkflow:     http.StatusNotFound,
	holdpoint.CodeBusy:                http.StatusConflict,
	holdpoint.CodeLeaseLost:           http.StatusConflict,
	holdpoint.CodeLeaseOtherExecution: http.StatusConflict,
	holdpoint.CodeInProgress:          http.StatusConflict,
	holdpoint.CodeUncertain:           http.StatusConflict,
	holdpoint.CodeStaleDigest:         http.StatusConflict,
	holdpoint.CodeAlreadyDecided:      http.StatusConflict,
	holdpoint.CodePolicyMoved:         http.StatusConflict,
	holdpoint.CodeNotAllowedNow:       http.StatusConflict,
	holdpoint.CodeNoPolicy:            http.StatusConflict,
	holdpoint.CodeExists:              http.StatusConflict,
	holdpoint.CodeTooLarge:            http.StatusRequestEntityTooLarge,
	holdpoint.CodeUnsupportedMedia:    http.StatusUnsupportedMediaType,
	holdpoint.CodeMismatch:            http.StatusUnprocessableEntity,
	holdpoint.CodeDerivedKey:          http.StatusUnprocessableEntity,
	holdpoint.CodeInvalidPolicy:       http.StatusUnprocessableEntity,
	holdpoint.CodeInitiatorMissing:    http.StatusUnprocessableEntity,
	holdpoint.CodeReasonRequired:      http.StatusUnprocessableEntity,
	holdpoint.CodeRender:              http.StatusUnprocessableEntity,
	holdpoint.CodeRateLimited:         http.StatusTooManyRequests,
	holdpoint.CodeInternal:            http.StatusInternalServerError,
	holdpoint.CodeUnavailable:         http.StatusServiceUnavailable,
}

// Status is the HTTP status of a code; a code outside the table is a fault of the program and gives 500.
func Status(c holdpoint.Code) int {
	if s, ok := Statuses[c]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// Problem is an error as an RFC 9457 problem document. Members are further members beside the named ones, which they
// never replace.
type Problem struct {
	Type      string // about:blank: the status says what kind of problem it is, Code which one
	Title     string // the status in words
	Status    int
	Code      holdpoint.Code
	Detail    string // one sentence that says what to do
	RequestID string
	Members   map[string]any
}

// MarshalJSON implements json.Marshaler.
func (p Problem) MarshalJSON() ([]byte, error) {
	all := make(map[string]any, len(p.Members)+6)
	for name, v := range p.Members {
		all[name] = v
	}
	all["type"], all["title"], all["status"] = p.Type, p.Title, p.Status
	all["code"], all["detail"], all["request_id"] = p.Code, p.Detail, p.RequestID
	return encode(all)
}

// NewProblem gives the problem document of an error. Only an *holdpoint.Error that is meant for the caller shows its
// sentence; everything else is internal and says nothing about its cause.
func NewProblem(err error, requestID string) Problem {
	e := known(err)
	status := Status(e.Code)
	return Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Code: e.Code, Detail: e.Message,
		RequestID: requestID, Members: e.Detail}
}

// known finds the error that the caller may see.
func known(err error) *holdpoint.Error {
	var e *holdpoint.Error
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &e) && e.Code != holdpoint.CodeInternal && Statuses[e.Code] != 0:
		return e
	case errors.As(err, &large):
		return tooLarge(large.Limit)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return holdpoint.Errorf(holdpoint.CodeUnavailable, "The call was not answered in time; repeat it.")
	}
	return holdpoint.Errorf(holdpoint.CodeInternal, "Something is wrong on the server; give its operator the request_id.")
}

// Render answers a request with the problem document of an error. What failed on the server is logged with its cause
// and the request id. If the answer has begun already, the error is only logged.
func Render(w http.ResponseWriter, r *http.Request, err error) {
	p := NewProblem(err, RequestID(r.Context()))
	if p.Status >= http.StatusInternalServerError {
		level := slog.LevelError
		if p.Status == http.StatusServiceUnavailable {
			level = slog.LevelWarn
		}
		logger(r.Context()).Log(r.Context(), level, "call failed", "request_id", p.RequestID, "code", p.Code, "error", err.Error())
	}
	if began(w) {
		return
	}
	body, err := encode(p)
	if err != nil {
		p.Members = nil
		body, _ = encode(p)
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if s, ok := p.retryAfter(); ok {
		h.Set("Retry-After", strconv.Itoa(s))
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="holdpoint"`)
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // a caller that went away gets nothing
}

// retryAfter gives the header's seconds: what the error says, or one second for the codes that ask to come again.
func (p Problem) retryAfter() (int, bool) {
	switch v := p.Members["retry_after"].(type) {
	case int:
		return max(1, v), true
	case time.Duration:
		return RetrySeconds(v), true
	}
	switch p.Code {
	case holdpoint.CodeUnavailable, holdpoint.CodeBusy, holdpoint.CodeInProgress, holdpoint.CodeRateLimited:
		return 1, true
	}
	return 0, false
}

// RetrySeconds rounds a wait up to the whole seconds of a Retry-After header, at least one.
func RetrySeconds(d time.Duration) int { return max(1, int(math.Ceil(d.Seconds()))) }

// encode writes JSON without HTML escapes.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return b.Bytes(), err
}
