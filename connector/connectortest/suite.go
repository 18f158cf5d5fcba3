// Package connectortest is the conformance suite that every connector passes against the mirror provider.
package connectortest

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/connector"
	"github.com/holdpoint/holdpoint/connector/mirror"
)

// SuiteTimeout is the timeout of one exchange that a connector under test must use.
const SuiteTimeout = 3 * time.Second

// SuitePath is where a connector under test must write to.
const SuitePath = "/write"

// Run checks a connector against every behaviour of the provider: result, phase, class, and how many writes arrived.
//
// build gives a connector that POSTs Vars.Payload to url+SuitePath with Vars.Key in mirror.KeyHeader, takes 200 and 201 as
// success and /id as the provider's id, looks up with GET url+LookupPath+"?ref="+Vars.Reference, calls one result found
// and none absent, permits loopback, and uses SuiteTimeout. If it has a method Close, Run calls it.
func Run(t *testing.T, build func(url string) connector.Connector) {
	t.Run("answers", func(t *testing.T) { testAnswers(t, build) })
	t.Run("broken wire", func(t *testing.T) { testBrokenWire(t, build) })
	t.Run("nothing leaves", func(t *testing.T) { testNothingLeaves(t, build) })
	t.Run("one attempt is one request", func(t *testing.T) { testOneRequest(t, build) })
	t.Run("keys", func(t *testing.T) { testKeys(t, build) })
	t.Run("look-up", func(t *testing.T) { testLookup(t, build) })
}

type bench struct {
	*testing.T
	p *mirror.Provider
	c connector.Connector
}

func newBench(t *testing.T, build func(url string) connector.Connector) *bench {
	t.Helper()
	p, err := mirror.Start("127.0.0.1:0")
	if err != nil {
		t.Fatalf("start provider: %v", err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close provider: %v", err)
		}
	})
	c := build(p.URL())
	if closer, ok := c.(interface{ Close() }); ok {
		t.Cleanup(closer.Close)
	}
	return &bench{T: t, p: p, c: c}
}

// vars gives the Vars of an effect named name.
func vars(name string) connector.Vars {
	return connector.Vars{
		Key: "key-" + name, Reference: "ref-" + name, Target: "someone", Slot: "note", Type: "crm.note", RunID: "run-1",
		Payload: []byte(`{"external_ref":"ref-` + name + `","text":"hello"}`),
	}
}

func (b *bench) send(ctx context.Context, v connector.Vars) holdpoint.Outcome {
	b.Helper()
	call, err := b.c.Prepare(v)
	if err != nil {
		b.Fatalf("prepare: %v", err)
	}
	return call.Send(ctx, time.Now().Add(time.Minute))
}

type want struct {
	result holdpoint.Result
	class  holdpoint.FailureClass
	phases []holdpoint.Phase
	wire   int // writes that arrived
}

func (b *bench) check(o holdpoint.Outcome, w want) {
	b.Helper()
	if o.Result != w.result || o.Class != w.class || !slices.Contains(w.phases, o.Phase) {
		b.Errorf("outcome %s %q %s (%s); want %s %q %v", o.Result, o.Class, o.Phase, o.Detail, w.result, w.class, w.phases)
	}
	// What was written completely arrives, however late the provider comes to read it.
	b.until("the writes arrive", func() bool { return len(b.p.Writes()) >= w.wire })
	if got := len(b.p.Writes()); got != w.wire {
		b.Errorf("%d writes arrived, want %d", got, w.wire)
	}
}

// until waits for a condition of the provider.
func (b *bench) until(what string, ok func() bool) {
	b.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("timed out: %s", what)
		}
	}
}

func testAnswers(t *testing.T, build func(url string) connector.Connector) {
	const accepted, rejected, unclear = holdpoint.Accepted, holdpoint.Rejected, holdpoint.Unclear
	wait3 := map[string]string{"Retry-After": "3"}
	tests := []struct {
		name   string
		b      mirror.Behaviour
		result holdpoint.Result
		class  holdpoint.FailureClass
		after  time.Duration
	}{
		{"200", mirror.OK("a1"), accepted, holdpoint.ClassNone, 0},
		{"201", mirror.Behaviour{Commit: true, Status: 201}, accepted, holdpoint.ClassNone, 0},
		{"late but in time", mirror.LateAnswer(20*time.Millisecond, "a2"), accepted, holdpoint.ClassNone, 0},
		{"200 without id", mirror.Status(200, `{"note":"done"}`, nil).Committing(), accepted, holdpoint.ClassUnreferenced, 0},
		{"202 is no success here", mirror.Status(202, `{"id":"a3"}`, nil), unclear, holdpoint.ClassAmbiguous, 0},
		{"207", mirror.Status(207, `{"items":[]}`, nil), unclear, holdpoint.ClassPartial, 0},
		{"307", mirror.Status(307, "", map[string]string{"Location": "/elsewhere"}), rejected, holdpoint.ClassRedirect, 0},
		{"400", mirror.Status(400, `{"error":"bad"}`, nil), rejected, holdpoint.ClassInvalidData, 0},
		{"401", mirror.Status(401, "", nil), rejected, holdpoint.ClassCredentials, 0},
		{"402", mirror.Status(402, "", nil), rejected, holdpoint.ClassDeclined, 0},
		{"403", mirror.Status(403, "", nil), rejected, holdpoint.ClassPermission, 0},
		{"403 with a rate signal", mirror.Status(403, "", wait3), rejected, holdpoint.ClassThrottled, 3 * time.Second},
		{"404", mirror.Status(404, "", nil), rejected, holdpoint.ClassInvalidData, 0},
		{"408", mirror.Status(408, "", nil), unclear, holdpoint.ClassAmbiguous, 0},
		{"409", mirror.Status(409, "", nil), unclear, holdpoint.ClassAlreadyExists, 0},
		{"409 to be repeated", mirror.Status(409, "", wait3), unclear, holdpoint.ClassInProgress, 3 * time.Second},
		{"410", mirror.Status(410, "", nil), rejected, holdpoint.ClassGone, 0},
		{"422", mirror.Status(422, "", nil), rejected, holdpoint.ClassInvalidData, 0},
		{"429", mirror.Status(429, "", wait3), rejected, holdpoint.ClassThrottled, 3 * time.Second},
		{"500", mirror.Status(500, "", nil), unclear, holdpoint.ClassProviderError, 0},
		{"500 after a commit", mirror.Status(500, "", nil).Committing(), unclear, holdpoint.ClassProviderError, 0},
		{"502", mirror.Status(502, "", nil), unclear, holdpoint.ClassOverloaded, 0},
		{"503", mirror.Status(503, "", nil), unclear, holdpoint.ClassOverloaded, 0},
		{"503 with a time", mirror.Status(503, "", wait3), rejected, holdpoint.ClassThrottled, 3 * time.Second},
		{"504 after a commit", mirror.Status(504, "", nil).Committing(), unclear, holdpoint.ClassOverloaded, 0},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, build)
			b.p.Queue(SuitePath, tc.b)
			o := b.send(context.Background(), vars("a"))
			b.check(o, want{tc.result, tc.class, []holdpoint.Phase{holdpoint.PhaseComplete}, 1})
			if o.RetryAfter != tc.after {
				t.Errorf("retry after %s, want %s", o.RetryAfter, tc.after)
			}
			if o.Status != tc.b.Status {
				t.Errorf("status %d, want %d", o.Status, tc.b.Status)
			}
			if id := b.p.Writes()[0].ID; tc.result == accepted && tc.class == holdpoint.ClassNone && o.ProviderID != id {
				t.Errorf("provider id %q, want %q", o.ProviderID, id)
			}
		})
	}
}

func testBrokenWire(t *testing.T, build func(url string) connector.Connector) {
	lost := want{holdpoint.Unclear, holdpoint.ClassAmbiguous, []holdpoint.Phase{holdpoint.PhaseWritten}, 1}
	halved := want{holdpoint.Accepted, holdpoint.ClassUnreferenced, []holdpoint.Phase{holdpoint.PhaseStatus}, 1}
	unread := want{holdpoint.Unclear, holdpoint.ClassAmbiguous, []holdpoint.Phase{holdpoint.PhasePartial, holdpoint.PhaseWritten}, 0}
	tests := []struct {
		name string
		b    mirror.Behaviour
		want want
	}{
		{"accept then stall", mirror.AcceptThenStall(time.Minute), lost},
		{"answer after the timeout", mirror.LateAnswer(time.Minute, "late"), lost},
		{"accept then close", mirror.AcceptThenClose(), lost},
		{"accept then reset", mirror.AcceptThenReset(), lost},
		{"truncated body", mirror.TruncatedBody(), halved},
		{"reset in the body", mirror.ResetMidBody(), halved},
		{"close before read", mirror.CloseBeforeRead(), unread},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, build)
			b.p.Queue(SuitePath, tc.b)
			v := vars("a")
			v.Payload = append(v.Payload, bytes.Repeat([]byte(" "), 1<<20)...) // more than a socket buffer
			b.check(b.send(context.Background(), v), tc.want)
		})
	}
	t.Run("cancelled in flight", func(t *testing.T) {
		b := newBench(t, build)
		b.p.Queue(SuitePath, mirror.AcceptThenStall(time.Minute))
		ctx, cancel := context.WithCancel(context.Background())
		done := chanOf(func() holdpoint.Outcome { return b.send(ctx, vars("a")) })
		b.until("the write arrives", func() bool { return len(b.p.Writes()) == 1 })
		cancel()
		b.check(<-done, lost)
	})
}

func chanOf(f func() holdpoint.Outcome) <-chan holdpoint.Outcome {
	out := make(chan holdpoint.Outcome, 1)
	go func() { out <- f() }()
	return out
}

func testNothingLeaves(t *testing.T, build func(url string) connector.Connector) {
	local := []holdpoint.Phase{holdpoint.PhaseLocal}
	t.Run("nobody listens", func(t *testing.T) {
		b := newBench(t, build)
		if err := b.p.Close(); err != nil {
			t.Fatal(err)
		}
		o := b.send(context.Background(), vars("a"))
		b.check(o, want{holdpoint.Rejected, holdpoint.ClassConnect, []holdpoint.Phase{holdpoint.PhaseConnect}, 0})
	})
	t.Run("past the write deadline", func(t *testing.T) {
		b := newBench(t, build)
		for _, before := range []time.Time{{}, time.Now(), time.Now().Add(-time.Hour)} {
			call, err := b.c.Prepare(vars("a"))
			if err != nil {
				t.Fatal(err)
			}
			o := call.Send(context.Background(), before)
			b.check(o, want{holdpoint.Rejected, holdpoint.ClassLocalDeadline, local, 0})
		}
	})
	t.Run("cancelled before", func(t *testing.T) {
		b := newBench(t, build)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		b.check(b.send(ctx, vars("a")), want{holdpoint.Rejected, holdpoint.ClassLocalDeadline, local, 0})
	})
	t.Run("prepare", func(t *testing.T) {
		b := newBench(t, build)
		first, err := b.c.Prepare(vars("a"))
		if err != nil {
			t.Fatal(err)
		}
		again, err := b.c.Prepare(vars("a"))
		if err != nil {
			t.Fatal(err)
		}
		other := vars("a")
		other.Payload = []byte(`{"external_ref":"ref-a","text":"something else"}`)
		changed, err := b.c.Prepare(other)
		if err != nil {
			t.Fatal(err)
		}
		if first.WireHash() == "" || first.WireHash() != again.WireHash() || first.WireHash() == changed.WireHash() {
			t.Errorf("wire hashes %q, %q, %q: want the same, the same, another", first.WireHash(), again.WireHash(), changed.WireHash())
		}
		if n := len(b.p.Writes()); n != 0 {
			t.Errorf("prepare sent %d writes", n)
		}
	})
}

func testOneRequest(t *testing.T, build func(url string) connector.Connector) {
	lost := want{holdpoint.Unclear, holdpoint.ClassAmbiguous, []holdpoint.Phase{holdpoint.PhaseWritten}, 2}
	for name, payload := range map[string][]byte{"with body": vars("b").Payload, "without body": nil} {
		for kind, broken := range map[string]mirror.Behaviour{"close": mirror.AcceptThenClose(), "reset": mirror.AcceptThenReset()} {
			t.Run(name+" "+kind, func(t *testing.T) {
				b := newBench(t, build)
				b.p.Queue(SuitePath, mirror.OK(""), broken)
				if o := b.send(context.Background(), vars("a")); o.Result != holdpoint.Accepted {
					t.Fatalf("first write: %s (%s)", o.Result, o.Detail)
				}
				v := vars("b")
				v.Payload = payload
				b.check(b.send(context.Background(), v), lost)
			})
		}
	}
	t.Run("redirect", func(t *testing.T) {
		b := newBench(t, build)
		b.p.Queue(SuitePath, mirror.Status(http.StatusPermanentRedirect, "", map[string]string{"Location": b.p.URL() + "/elsewhere"}))
		b.send(context.Background(), vars("a"))
		if n := b.p.CountPath("/elsewhere"); n != 0 {
			t.Errorf("the redirect was followed")
		}
	})
}

func testKeys(t *testing.T, build func(url string) connector.Connector) {
	complete := []holdpoint.Phase{holdpoint.PhaseComplete}
	t.Run("lost answer, then the same key", func(t *testing.T) {
		b := newBench(t, build)
		b.p.HonourKeys(true)
		b.p.Queue(SuitePath, mirror.AcceptThenClose())
		b.send(context.Background(), vars("a"))
		o := b.send(context.Background(), vars("a"))
		b.check(o, want{holdpoint.Accepted, holdpoint.ClassNone, complete, 2})
		if objects := b.p.Objects("ref-a"); len(objects) != 1 || objects[0].ID != o.ProviderID {
			t.Errorf("objects %v, provider id %q: want one object with that id", objects, o.ProviderID)
		}
	})
	t.Run("same key, other body", func(t *testing.T) {
		b := newBench(t, build)
		b.p.HonourKeys(true)
		b.send(context.Background(), vars("a"))
		v := vars("a")
		v.Payload = []byte(`{"external_ref":"ref-a","text":"something else"}`)
		b.check(b.send(context.Background(), v), want{holdpoint.Unclear, holdpoint.ClassKeyConflict, complete, 2})
	})
	t.Run("same key twice at once", func(t *testing.T) {
		b := newBench(t, build)
		b.p.HonourKeys(true)
		b.p.Queue(SuitePath, mirror.AcceptThenStall(time.Minute))
		ctx, cancel := context.WithCancel(context.Background())
		first := chanOf(func() holdpoint.Outcome { return b.send(ctx, vars("a")) })
		b.until("the first write arrives", func() bool { return len(b.p.Writes()) == 1 })
		b.check(b.send(context.Background(), vars("a")), want{holdpoint.Unclear, holdpoint.ClassInProgress, complete, 2})
		cancel()
		<-first
	})
}

func testLookup(t *testing.T, build func(url string) connector.Connector) {
	find := func(b *bench, name string) connector.Finding { return b.c.Find(context.Background(), vars(name)) }
	b := newBench(t, build)
	if f := find(b, "a"); f.State != connector.Absent {
		t.Errorf("nothing written: %+v, want absent", f)
	}
	b.p.Queue(SuitePath, mirror.AcceptThenClose())
	b.send(context.Background(), vars("a"))
	if f := find(b, "a"); f.State != connector.Found || f.Matches != 1 || f.ProviderID != b.p.Objects("ref-a")[0].ID {
		t.Errorf("one object: %+v, want found with its id", f)
	}
	b.p.VisibilityLag(time.Hour)
	if f := find(b, "a"); f.State != connector.Absent {
		t.Errorf("object not visible yet: %+v, want absent", f)
	}
	b.p.VisibilityLag(0)
	b.send(context.Background(), vars("a"))
	if f := find(b, "a"); f.State != connector.Unclear {
		t.Errorf("two objects: %+v, want unclear", f)
	}
	writes := len(b.p.Writes())
	if err := b.p.Close(); err != nil {
		t.Fatal(err)
	}
	if f := find(b, "zzz"); f.State != connector.Unclear {
		t.Errorf("provider down: %+v, want unclear", f)
	}
	if got := len(b.p.Writes()); got != writes {
		t.Errorf("look-ups wrote %d times", got-writes)
	}
}
