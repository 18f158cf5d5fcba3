//go:build e2e && kill

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/connector/mirror"
	"github.com/holdpoint/holdpoint/internal/killpoint"
)

// besieged is the policy of a siege: a workflow for each class of connector, and one for the desk.
var besieged = func() string {
	document := staffed
	for _, c := range append(slices.Clone(classes), "desk") {
		document += strings.Replace(connectorOf(c), "timeout: 5s", "timeout: 1s", 1)
	}
	document += hooked + "workflows:\n"
	for _, c := range append(slices.Clone(classes), "desk") {
		document += strings.Replace(flow(string(c), string(c)), "[lead]}", "[lead], notify: [hook]}\n    alerts: [hook]", 1)
	}
	return document
}()

// elsewhere are the points that no client of a siege leads to, each with the test that kills there.
var elsewhere = map[string]string{
	"store.create_tenant":     "TestCrashedInit",
	"store.migrate.statement": "TestCrashedInit",
	"init.files_written":      "TestCrashedInit",
	"init.before_answer":      "TestCrashedInit",
	"store.create_session":    "the pages for people: a log-in that is lost is made again",
	"store.end_session":       "the pages for people",
	"store.open_challenge":    "the pages for people: noted once more at the next opening",
	"store.set_language":      "the pages for people",
	"store.set_password":      "the pages for people",
	"store.hold_effects":      "no caller yet",
	"store.put_proof":         "no caller yet",
}

// siege is one instance under load whose servers are killed again and again.
type siege struct {
	*world
	*load
	place place
	desk  *desk
	plan  *rand.Rand // what is done to the servers; the clients have their own
	turn  []string   // points, in the order in which they are killed at
	next  int        // index in turn

	mu      sync.Mutex
	servers []*server // one for each replica; nil while it is away
	armed   []string  // the point at which each is to die

	hits, missed map[string]int
	kinds        map[string]int
	queued       map[string]int // behaviours given to the provider, by path
	slowest      time.Duration  // from a death to the next answer
	unknown      int            // effects that only a person could settle
}

func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "%s is a number", name)
	return n
}

// TestKill lets servers die under load, CYCLES times (the half of them on each store, or all on STORE), from SEED.
func TestKill(t *testing.T) {
	cycles, seed := number(t, "CYCLES", 50), number(t, "SEED", int(time.Now().UnixNano()%1_000_000))
	places := []place{sqlite, postgres}
	if s := os.Getenv("STORE"); s != "" && s != "both" {
		places = []place{place(s)}
	}
	each := (cycles + len(places) - 1) / len(places)
	pausableBinary(t)
	on(t, func(t *testing.T, p place) {
		t.Logf("%d cycles from seed %d; the same again: make kill SEED=%d CYCLES=%d STORE=%s", each, seed, seed, each, p)
		besiege(t, p, each, uint64(seed))
	}, places...)
}

func besiege(t *testing.T, p place, cycles int, seed uint64) {
	began := time.Now()
	s := &siege{world: newWorld(t, p, besieged), place: p, plan: rand.New(rand.NewPCG(seed, 0)), hits: map[string]int{}, missed: map[string]int{},
		kinds: map[string]int{}, queued: map[string]int{}}
	s.env = append(s.env, "HOOK_SECRET=a secret of this test")
	s.provider.HonourKeys(true)
	var cycle atomic.Int64
	s.load = &load{j: &journal{}, pick: s.any, cycle: &cycle, seed: seed}
	s.desk = newDesk(s.load, s.world)
	for _, point := range killpoint.Points() {
		verb := strings.TrimSuffix(strings.TrimSuffix(point, ".before_commit"), ".committed")
		if elsewhere[point] == "" && elsewhere[verb] == "" && (point != "app.locked" || p == sqlite) {
			s.turn = append(s.turn, point)
		}
	}
	s.plan.Shuffle(len(s.turn), func(i, j int) { s.turn[i], s.turn[j] = s.turn[j], s.turn[i] })
	replicas := 1
	if p != sqlite {
		replicas = 2
	}
	s.servers, s.armed = make([]*server, replicas), make([]string, replicas)
	for i := range s.servers {
		s.start(i, "")
	}
	first := s.servers[0]
	first.switchOn()
	s.prove(first, keyed, both)

	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop()
	for n := range 6 {
		clients.Go(func() { s.work(ctx, n) })
	}
	clients.Go(func() { s.desk.sit(ctx) })
	for n := range cycles {
		cycle.Store(int64(n))
		s.misbehave()
		how := s.cycle(n)
		s.check(n, max(0, n-1))
		if broken := s.j.breaches(); len(broken) > 0 {
			t.Fatalf("cycle %d of seed %d (%s):\n%s", n, seed, how, strings.Join(broken[:min(20, len(broken))], "\n"))
		}
		if n%25 == 24 {
			s.report(n+1, time.Since(began))
		}
	}
	stop()
	clients.Wait()
	s.drain()
	s.report(cycles, time.Since(began))
}

// any gives a server that may answer.
func (s *siege) any(r *rand.Rand) *server {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.servers {
		if x := s.servers[(i+r.IntN(len(s.servers)))%len(s.servers)]; x != nil && !x.over() {
			return x
		}
	}
	return nil
}

// start starts replica i, armed with a point if one is given. One that dies of its point before it is up counts as
// killed there, and is started again without.
func (s *siege) start(i int, point string) {
	s.t.Helper()
	for {
		how := serving{binary: pausableBinary(s.t)}
		if point != "" {
			how.env = []string{"HOLDPOINT_KILLPOINT=kill:" + point}
		}
		x := s.launch(how)
		if x.up() {
			s.mu.Lock()
			s.servers[i], s.armed[i] = x, point
			s.mu.Unlock()
			return
		}
		if point == "" {
			s.t.Fatalf("a server does not come back: %s", x.logged())
		}
		x.died(soon)
		s.hits[bare(point)]++
		point = ""
	}
}

// bare is a point without the number of the hit.
func bare(point string) string {
	name, _, _ := strings.Cut(point, "#")
	return name
}

// away takes replica i from the clients' sight.
func (s *siege) away(i int) *server {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.servers[i]
	s.servers[i] = nil
	return x
}

// cycle kills one replica, or all, in one of the ways, brings it back, and says what it has done.
func (s *siege) cycle(n int) string {
	i := s.plan.IntN(len(s.servers))
	chance := s.plan.IntN(100)
	moment := time.Duration(50+s.plan.IntN(1500)) * time.Millisecond
	kind := "at a point"
	switch {
	case chance < 20:
		kind = "at random"
	case chance < 26 && len(s.servers) > 1:
		kind = "all at random"
	case chance < 31 && n > 0:
		kind = "stopped past its leases"
	}
	s.kinds[kind]++
	switch kind {
	case "at a point":
		return s.atPoint(i)
	case "stopped past its leases":
		return s.stopped(i)
	}
	time.Sleep(moment) // the moment is the point of it
	died := time.Now()
	for k := range s.servers {
		if k == i || kind == "all at random" {
			x := s.away(k)
			x.kill()
			x.died(soon)
		}
	}
	for k := range s.servers {
		if k == i || kind == "all at random" {
			s.start(k, "")
		}
	}
	s.slowest = max(s.slowest, time.Since(died))
	return fmt.Sprintf("%s, after %s", kind, moment)
}

// atPoint restarts replica i so that it dies at the next point in turn.
func (s *siege) atPoint(i int) string {
	point := s.turn[s.next%len(s.turn)]
	s.next++
	x := s.away(i)
	x.kill()
	// Not always the first time: what the loops do all the time is met at the start, with nothing in hand.
	armed := point + "#" + strconv.Itoa(1+s.plan.IntN(3))
	if point == "app.locked" || point == "store.migrate.committed" {
		armed = point
	}
	s.start(i, armed)
	x = s.servers[i]
	if s.armed[i] == "" {
		return "at " + armed + ", at its start"
	}
	verb := strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(point, "store."), ".before_commit"), ".committed")
	for patience := time.After(6 * time.Second); ; {
		select {
		case s.desk.wish <- verb:
		default:
		}
		select {
		case <-x.ended:
			died := time.Now()
			x.died(soon)
			s.hits[point]++
			s.away(i)
			s.start(i, "")
			s.slowest = max(s.slowest, time.Since(died))
			return "at " + armed
		case <-patience:
			s.missed[point]++
			s.away(i).kill()
			s.start(i, "")
			return "not at " + armed + ", which was not met"
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stopped stops replica i for longer than any of its leases and lets it go on.
func (s *siege) stopped(i int) string {
	x := s.servers[i]
	x.signal(syscall.SIGSTOP)
	if len(s.servers) == 1 {
		s.away(i) // nobody answers; the clients wait
	}
	time.Sleep(13 * time.Second) // a send window, a time-out and a margin make eleven
	x.signal(syscall.SIGCONT)
	s.mu.Lock()
	s.servers[i] = x
	s.mu.Unlock()
	return "stopped past its leases"
}

// misbehave tells the provider how to treat the next writes, so that a share of them is ambiguous, refused or late.
func (s *siege) misbehave() {
	for _, c := range classes {
		path := "/" + string(c)
		for s.queued[path] < s.provider.CountPath(path)+40 {
			b := mirror.OK("")
			switch chance := s.plan.IntN(100); {
			case chance < 8:
				b = mirror.AcceptThenClose()
			case chance < 14:
				b = mirror.AcceptThenReset()
			case chance < 18:
				b = mirror.TruncatedBody()
			case chance < 22:
				b = mirror.LateAnswer(1500*time.Millisecond, "")
			case chance < 26:
				b = mirror.Status(500, "", nil).Committing()
			case chance < 29:
				b = mirror.CloseBeforeRead()
			case chance < 31:
				b = mirror.Status(429, "", map[string]string{"Retry-After": "1"})
			case chance < 35:
				b = mirror.Status(422, `{"error":"no"}`, nil)
			}
			s.provider.Queue(path, b)
			s.queued[path]++
		}
	}
}

// drain lets the servers finish without any new work, says of what stays in doubt what the provider shows, and checks
// everything that was ever acknowledged.
func (s *siege) drain() {
	t := s.t
	for i := range s.servers {
		s.away(i).kill()
		s.start(i, "")
	}
	x := s.servers[0]
	for _, c := range append(slices.Clone(classes), "desk") {
		require.NoError(t, s.desk.turn(t.Context(), s.plan, "workflow:"+string(c), true), "flips are acknowledged to the desk")
		_, err := x.otto.ReleaseConnector(t.Context(), string(c))
		require.NoError(t, err)
	}
	settled := func(what string) {
		eventually(t, 2*later, "nothing is under way any more: "+what, func() bool {
			n, _ := s.query(`SELECT COUNT(*) FROM effects WHERE state = 'sending' OR state = 'pending' AND hold = '' OR state = 'unknown' AND next_lookup_at IS NOT NULL`)
			return n == 0
		})
	}
	settled("effects that the machine can settle")
	for _, e := range s.effects() {
		if e.state != holdpoint.EffectUnknown {
			continue
		}
		s.unknown++
		require.NoError(t, s.resolve(x, e))
	}
	settled("effects that an operator has spoken about")
	eventually(t, 2*later, "every message has left", func() bool {
		n, _ := s.query(`SELECT COUNT(*) FROM messages WHERE state = 'pending'`)
		return n == 0
	})
	s.check(1<<30, 0)
	require.Empty(t, s.j.breaches())
	waiting, _ := s.query(`SELECT COUNT(*) FROM runs r WHERE r.state = 'approved' AND NOT EXISTS (SELECT 1 FROM effects e
 WHERE e.tenant = r.tenant AND e.run_id = r.id AND e.state IN ('pending', 'sending', 'unknown'))`)
	require.Zero(t, waiting, "a run whose effects have all ended has ended")
}
