//go:build e2e

package e2e

import (
	"database/sql"
	"io"
	"iter"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the driver sqlite

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/connector/mirror"
)

// tap passes bytes on to the provider and counts those of the caller.
type tap struct {
	url   string
	bytes atomic.Int64
}

// tapped puts a tap in front of the provider's path /mail.
func (w *world) tapped() *tap {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = l.Close() })
	p := &tap{url: "http://" + l.Addr().String()}
	target := strings.TrimPrefix(w.provider.URL(), "http://")
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				_ = in.Close()
				continue
			}
			go func() { _, _ = io.Copy(in, out); _ = in.Close() }()
			go func() { _, _ = io.Copy(out, io.TeeReader(in, p)); _ = out.Close() }()
		}
	}()
	w.activate(strings.Replace(governed, "PROVIDER/mail", p.url+"/mail", 1))
	return p
}

// Write implements io.Writer for the bytes that came from the caller.
func (p *tap) Write(b []byte) (int, error) {
	p.bytes.Add(int64(len(b)))
	return len(b), nil
}

// query reads one number from the world's database, past every server.
func (w *world) query(statement string, args ...any) (value int64, found bool) {
	w.t.Helper()
	for range w.read(statement, args, &value) {
		found = true
		break
	}
	return value, found
}

// read goes over rows of the world's database, past every server, and leaves each in into.
func (w *world) read(statement string, args []any, into ...any) iter.Seq[int] {
	return func(yield func(int) bool) {
		w.t.Helper()
		db := w.db
		if db == nil {
			db = w.open()
			defer db.Close()
		}
		rows, err := db.QueryContext(w.t.Context(), statement, args...)
		require.NoError(w.t, err)
		defer rows.Close()
		for n := 0; rows.Next(); n++ {
			require.NoError(w.t, rows.Scan(into...))
			if !yield(n) {
				return
			}
		}
		require.NoError(w.t, rows.Err())
	}
}

// open opens the world's database for reading.
func (w *world) open() *sql.DB {
	w.t.Helper()
	driver, dsn := "", ""
	for _, e := range w.env {
		if text, ok := strings.CutPrefix(e, "HOLDPOINT_DB=sqlite:"); ok {
			driver, dsn = "sqlite", "file:"+text+"?_pragma=query_only(1)&_pragma=busy_timeout(5000)"
		} else if text, ok := strings.CutPrefix(e, "HOLDPOINT_DB_DIRECT="); ok {
			driver, dsn = "pgx", text
		}
	}
	db, err := sql.Open(driver, dsn)
	require.NoError(w.t, err)
	return db
}

// pausedAtAttempt stops a server between the attempt row of an effect and the first byte of its request, and waits until
// the attempt's write deadline has passed.
func pausedAtAttempt(t *testing.T, w *world) (s *server, runID string) {
	t.Helper()
	s = w.serve(serving{binary: pausableBinary(t), env: []string{"HOLDPOINT_KILLPOINT=stop:dispatch.attempt_committed"}})
	s.switchOn()
	runID, a := s.asked("ticket", "ticket-1")
	// The server may stop before it has answered; what it then answers is looked at once it goes on.
	decided := make(chan error, 1)
	go func() {
		_, err := s.ana.Decide(t.Context(), a.ID, client.DecisionRequest{Decision: holdpoint.DecisionApprove, Digest: a.Digest})
		decided <- err
	}()
	t.Cleanup(func() { require.NoError(t, <-decided) })
	eventually(t, soon, "the server has stopped itself", s.stopped)
	before, begun := w.query("SELECT send_before FROM attempts WHERE run_id = $1 AND settled_at IS NULL", runID)
	require.True(t, begun, "the attempt row is committed")
	eventually(t, soon, "the write deadline has passed", func() bool { return time.Now().After(time.UnixMicro(before).Add(50 * time.Millisecond)) })
	require.True(t, s.stopped())
	return s, runID
}

// TestPausedPastDeadline stops a server between the attempt row and the first byte until after send_before. When it goes
// on, no byte leaves: the attempt failed before the wire, which proves that nothing arrived, and the next one sends the
// effect once.
func TestPausedPastDeadline(t *testing.T) {
	on(t, func(t *testing.T, p place) {
		w := newWorld(t, p, governed)
		wire := w.tapped()
		s, runID := pausedAtAttempt(t, w)
		require.Zero(t, wire.bytes.Load())

		s.signal(syscall.SIGCONT)
		eventually(t, soon, "the first attempt is settled, and the second one stops the server again", func() bool {
			open, _ := w.query("SELECT COUNT(*) FROM attempts WHERE run_id = $1 AND number = 2 AND settled_at IS NULL", runID)
			return open == 1 && s.stopped()
		})
		require.Zero(t, wire.bytes.Load(), "the resumed attempt has sent bytes")
		s.signal(syscall.SIGCONT)

		x := s.awaitEffect(runID, soon, holdpoint.EffectCompleted)
		require.Len(t, w.provider.Writes(), 1)
		require.Equal(t, 1, w.arrived(x))
		require.Len(t, x.AttemptLog, 2)
		require.Equal(t, holdpoint.Rejected, x.AttemptLog[0].Result)
		require.Equal(t, holdpoint.PhaseLocal, x.AttemptLog[0].Phase)
		require.Equal(t, holdpoint.ClassLocalDeadline, x.AttemptLog[0].Class)
		require.Equal(t, holdpoint.Accepted, x.AttemptLog[1].Result)
		require.False(t, x.PossiblyCommitted)
		s.evidence(runID)
	}, sqlite, postgres)
}

// TestPausedAndTakenOver lets a second server give a stopped one up: it cannot know what the first has sent, so the effect
// is unknown. When the first goes on, no byte leaves, its late word changes no state, and an operator resolves.
func TestPausedAndTakenOver(t *testing.T) {
	on(t, func(t *testing.T, p place) {
		w := newWorld(t, p, governed)
		wire := w.tapped()
		s, runID := pausedAtAttempt(t, w)
		second := w.serve(serving{})
		x := second.awaitEffect(runID, later, holdpoint.EffectUnknown)
		require.True(t, x.PossiblyCommitted)
		require.Equal(t, holdpoint.ClassCrash, x.FailureClass)

		s.signal(syscall.SIGCONT)
		eventually(t, soon, "the first server's word is recorded", func() bool {
			x = second.effect(runID)
			return len(x.AttemptLog) == 1 && x.AttemptLog[0].Class == holdpoint.ClassLocalDeadline
		})
		require.Equal(t, holdpoint.EffectUnknown, x.State)
		require.Contains(t, types(second.evidence(runID)), "attempt.late_answer")
		require.Zero(t, wire.bytes.Load(), "the resumed attempt has sent bytes")
		s.stop()

		_, err := second.otto.Resolve(t.Context(), x.ID, client.Resolution{Verdict: holdpoint.VerdictNotSent, Reason: "the log of the first server says so"})
		require.NoError(t, err)
		x = second.awaitEffect(runID, soon, holdpoint.EffectCompleted)
		require.Equal(t, 1, w.arrived(x))
		require.Len(t, w.provider.Writes(), 1)
	}, postgres)
}

// TestKilledDuringCall kills a server while the provider, which has accepted the write, holds the connection. Nobody knows
// then what became of it: after the restart it is unknown, nothing is sent again, and an operator says what is true.
func TestKilledDuringCall(t *testing.T) {
	on(t, func(t *testing.T, p place) {
		// The call lasts long enough for another server to start while it is under way.
		w := newWorld(t, p, strings.Replace(governed, "timeout: 2s", "timeout: 8s", 1))
		w.provider.Queue("/mail", mirror.AcceptThenStall(time.Hour))
		s := w.serve(serving{})
		s.switchOn()
		acknowledged := s.claim("ticket", "ticket-0")
		runID, a := s.asked("ticket", "ticket-1")
		s.approve(s.ana, a)
		eventually(t, soon, "the provider has accepted", func() bool { return len(w.provider.Writes()) == 1 })

		if p == sqlite {
			s.kill()
			s = w.serve(serving{})
		} else { // a second server is there when it happens, and takes over
			second := w.serve(serving{})
			s.kill()
			s = second
		}
		require.Equal(t, acknowledged.Run.Version, s.run(acknowledged.Run.ID).Version, "what was acknowledged stands")
		require.Equal(t, holdpoint.RunApproved, s.run(runID).State)

		x := s.awaitEffect(runID, later, holdpoint.EffectUnknown)
		require.True(t, x.PossiblyCommitted)
		require.Equal(t, holdpoint.ClassCrash, x.FailureClass)
		require.Equal(t, 1, x.Attempts)
		// Others go on while this one waits for a person.
		s.awaitEffect(s.released("ticket", "ticket-2"), soon, holdpoint.EffectCompleted)
		require.Equal(t, 1, w.arrived(x))
		require.Equal(t, []string{"reply"}, s.run(runID).Answers.Uncertain)

		_, err := s.ana.Resolve(t.Context(), x.ID, client.Resolution{Verdict: holdpoint.VerdictSent, Reason: "I may not say so"})
		require.Error(t, err, "who is no operator resolves nothing")
		require.Equal(t, holdpoint.EffectUnknown, s.effect(runID).State)
		_, err = s.otto.Resolve(t.Context(), x.ID, client.Resolution{Verdict: holdpoint.VerdictSent, ProviderID: w.provider.Writes()[0].ID, Reason: "it is in the outbox there"})
		require.NoError(t, err)
		r := s.awaitRun(runID, soon, holdpoint.RunCompleted)
		require.Equal(t, holdpoint.EffectCompleted, r.Effects[0].State)
		require.Equal(t, w.provider.Writes()[0].ID, r.Effects[0].ProviderID)
		require.Equal(t, 1, w.arrived(x))
		require.Contains(t, types(s.evidence(runID)), "effect.resolved")
	}, sqlite, postgres)
}
