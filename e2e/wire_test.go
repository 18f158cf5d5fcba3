//go:build e2e

package e2e

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
)

// fading answers the first request on a connection and, on the same connection, takes the second one in full and closes
// without a word: the way in which a client is tempted to send again by itself.
type fading struct {
	url string

	mu    sync.Mutex
	conns int
	keys  []string // of the requests, in order of arrival
}

func newFading(t *testing.T) *fading {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := &fading{url: "http://" + l.Addr().String()}
	handler := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		f.mu.Lock()
		f.keys = append(f.keys, r.Header.Get("Idempotency-Key"))
		first := len(f.keys) == 1
		f.mu.Unlock()
		if first {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"id": "first"}`)
			return
		}
		c, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = c.Close()
		}
	}
	s := &http.Server{Handler: http.HandlerFunc(handler), ReadHeaderTimeout: time.Minute, ConnState: func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			f.mu.Lock()
			f.conns++
			f.mu.Unlock()
		}
	}}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return f
}

func (f *fading) counts() (connections int, keys []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.conns, append([]string(nil), f.keys...)
}

// TestReusedConnection has a provider commit on a connection that was used before and close it without an answer. A
// header named Idempotency-Key makes Go's transport willing to repeat such a request; Holdpoint sends it once.
func TestReusedConnection(t *testing.T) {
	on(t, func(t *testing.T, p place) {
		f := newFading(t)
		w := newWorld(t, p, strings.Replace(governed, "PROVIDER/mail", f.url+"/mail", 1))
		s := w.serve(serving{})
		s.switchOn()
		first := s.awaitEffect(s.released("ticket", "ticket-1"), soon, holdpoint.EffectCompleted)
		require.Equal(t, "first", first.ProviderID)

		x := s.awaitEffect(s.released("ticket", "ticket-2"), soon, holdpoint.EffectUnknown)
		conns, keys := f.counts()
		require.Equal(t, 1, conns, "the second request went out on the connection of the first")
		require.Equal(t, []string{first.ProviderKey, x.ProviderKey}, keys)
		require.True(t, x.PossiblyCommitted)
		require.Equal(t, 1, x.Attempts)
		require.Len(t, x.AttemptLog, 1)
		require.Equal(t, holdpoint.Unclear, x.AttemptLog[0].Result)
		require.Equal(t, holdpoint.PhaseWritten, x.AttemptLog[0].Phase)

		// A later effect has its turn; the unknown one has none.
		done := s.released("note", "note-1")
		s.awaitEffect(done, soon, holdpoint.EffectCompleted)
		conns, keys = f.counts()
		require.Equal(t, 1, conns)
		require.Len(t, keys, 2)
	}, sqlite, postgres)
}
