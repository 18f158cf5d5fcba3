package httpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/holdpoint/holdpoint"
)

// Options are those of Wrap. The zero value is usable.
type Options struct {
	Log     *slog.Logger // nil discards
	MaxBody int64        // bytes of any request body; 0 means 32 MiB. Handlers set narrower limits of their own
	Secure  bool         // people reach this instance over https: browsers are told to insist on it
}

// maxAnyBody is the outermost bound of a request body.
const maxAnyBody = 32 << 20

// note is what middleware and handlers of one request tell each other.
type note struct {
	id      string
	pattern string
	actor   string
	log     *slog.Logger
}

type noteKey struct{}

func noteOf(ctx context.Context) *note {
	n, _ := ctx.Value(noteKey{}).(*note)
	return n
}

func notePattern(r *http.Request) {
	if n := noteOf(r.Context()); n != nil {
		n.pattern = r.Pattern
	}
}

// RequestID is the id of the request that ctx belongs to, "" outside Wrap.
func RequestID(ctx context.Context) string {
	if n := noteOf(ctx); n != nil {
		return n.id
	}
	return ""
}

// SetActor tells the access log who is asking, by id.
func SetActor(ctx context.Context, id string) {
	if n := noteOf(ctx); n != nil {
		n.actor = id
	}
}

func logger(ctx context.Context) *slog.Logger {
	if n := noteOf(ctx); n != nil {
		return n.log
	}
	return slog.New(slog.DiscardHandler)
}

// Wrap puts around h what every surface needs: a request id (the caller's X-Request-Id if it is sane, else a new one;
// echoed), one line of access log, recovery from panics, a bound on the body, and headers that keep browsers from
// guessing, framing and caching. The access log names the route and never a URL, so that no token, key or search word
// stands in it. A handler may replace the headers.
func Wrap(h http.Handler, o Options) http.Handler {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.MaxBody <= 0 {
		o.MaxBody = maxAnyBody
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun := time.Now()
		n := &note{id: requestID(r.Header.Get("X-Request-Id")), log: o.Log}
		r = r.WithContext(context.WithValue(r.Context(), noteKey{}, n))
		rec := &recorder{ResponseWriter: w}
		header := rec.Header()
		header.Set("X-Request-Id", n.id)
		secure(header, o.Secure)
		r.Body = http.MaxBytesReader(rec, r.Body, o.MaxBody)
		defer func() {
			v := recover()
			cut := v != nil && (isAbort(v) || began(rec)) // half an answer must not pass for a whole one
			if v != nil && !isAbort(v) {
				n.log.ErrorContext(r.Context(), "panic", "request_id", n.id, "what", panicText(v), "stack", string(debug.Stack()))
				Render(rec, r, holdpoint.Errorf(holdpoint.CodeInternal, "a handler panicked"))
			}
			if n.pattern == "" {
				n.pattern = r.Pattern
			}
			n.log.InfoContext(r.Context(), "request", "method", method(r.Method), "route", n.pattern, "status", rec.Status(),
				"duration_ms", float64(time.Since(begun).Microseconds())/1000, "request_id", n.id, "actor", n.actor)
			if cut {
				panic(http.ErrAbortHandler)
			}
		}()
		h.ServeHTTP(rec, r)
	})
}

// requestID takes an id that is safe to log and to echo, or mints one.
func requestID(given string) string {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
	if given != "" && len(given) <= 64 && strings.Trim(given, allowed) == "" {
		return given
	}
	return uuid.Must(uuid.NewV7()).String()
}

func secure(h http.Header, https bool) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
	h.Set("Cache-Control", "no-store")
	if https {
		h.Set("Strict-Transport-Security", "max-age=31536000")
	}
}

// method keeps a method of the caller's own invention out of the log.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return m
	}
	return "other"
}

func isAbort(v any) bool {
	err, ok := v.(error)
	return ok && errors.Is(err, http.ErrAbortHandler)
}

// panicText says what the runtime found wrong. The value of another panic may hold content, so only its type is told.
func panicText(v any) string {
	if err, ok := v.(runtime.Error); ok {
		return err.Error()
	}
	return fmt.Sprintf("%T", v)
}

// recorder remembers what was answered.
type recorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Status is what the caller got; a handler that writes nothing answers 200.
func (w *recorder) Status() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}

// began reports whether an answer has begun, so that no second one can be given.
func began(w http.ResponseWriter) bool {
	rec, ok := w.(*recorder)
	return ok && rec.status != 0
}
