//go:build e2e && kill

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/connector/mirror"
)

// gapsInEvidence counts runs whose events are not numbered 1, 2, 3, …
const gapsInEvidence = `SELECT COUNT(*) FROM (SELECT run_id FROM events GROUP BY tenant, run_id HAVING MIN(run_seq) <> 1 OR MAX(run_seq) <> COUNT(*)) AS gaps`

// never are counts of what must never be, whatever happens to the servers.
var never = map[string]string{
	"evidence has a gap": gapsInEvidence,
	"a lease version was claimed twice": `SELECT COUNT(*) FROM (SELECT run_id FROM events WHERE type = 'run.claimed' AND run_id <> ''
 GROUP BY tenant, run_id, data HAVING COUNT(*) > 1) AS twice`,
	"a run was acted on twice":                    `SELECT COUNT(*) FROM (SELECT run_id FROM effects GROUP BY tenant, run_id HAVING COUNT(*) > 1) AS twice`,
	"two people's answers stand for one question": `SELECT COUNT(*) FROM (SELECT approval_id FROM decisions GROUP BY tenant, approval_id HAVING COUNT(*) > 1) AS twice`,
	"an effect was released without an approval": `SELECT COUNT(*) FROM effects e WHERE NOT EXISTS
 (SELECT 1 FROM decisions d WHERE d.tenant = e.tenant AND d.approval_id = e.approval_id AND d.decision = 'approve')`,
	"what cannot be looked up and honours no key was sent again after doubt": `SELECT COUNT(*) FROM attempts a
 JOIN attempts b ON b.tenant = a.tenant AND b.effect_id = a.effect_id AND b.number > a.number JOIN effects e ON e.tenant = a.tenant AND e.id = a.effect_id
 WHERE e.connector = 'plain' AND a.result <> 'rejected' AND NOT EXISTS
 (SELECT 1 FROM events v WHERE v.tenant = e.tenant AND v.run_id = e.run_id AND v.type = 'effect.resolved')`,
	"a run has ended with an effect open": `SELECT COUNT(*) FROM runs r JOIN effects e ON e.tenant = r.tenant AND e.run_id = r.id
 WHERE r.state IN ('completed', 'failed_terminal') AND e.state IN ('pending', 'sending', 'unknown')`,
	"a run is complete whose effect is not": `SELECT COUNT(*) FROM runs r JOIN effects e ON e.tenant = r.tenant AND e.run_id = r.id
 WHERE r.state = 'completed' AND e.state <> 'completed'`,
	"an effect that is not under way has an open attempt past its deadline": `SELECT COUNT(*) FROM attempts a JOIN effects e ON e.tenant = a.tenant AND e.id = a.effect_id
 WHERE a.settled_at IS NULL AND e.state = 'failed'`,
}

// effect is one row of the outbox, read past every server.
type effect struct {
	id, run, reference, connector string
	state                         holdpoint.EffectState
	attempts                      int
}

func (s *siege) effects() []effect {
	var all []effect
	var e effect
	var state string
	for range s.read("SELECT id, run_id, reference, connector, state, attempts FROM effects", nil, &e.id, &e.run, &e.reference, &e.connector, &state, &e.attempts) {
		e.state = holdpoint.EffectState(state)
		all = append(all, e)
	}
	return all
}

// shown is what the provider shows of one reference.
type shown struct {
	writes, objects int
	afterObject     int // requests that came after one that had made an object
	keys, bodies    map[string]bool
}

func byReference(writes []mirror.Write) map[string]*shown {
	all := map[string]*shown{}
	for _, one := range writes {
		if one.Reference == "" {
			continue // a message
		}
		x := all[one.Reference]
		if x == nil {
			x = &shown{keys: map[string]bool{}, bodies: map[string]bool{}}
			all[one.Reference] = x
		}
		if x.objects > 0 {
			x.afterObject++
		}
		x.writes++
		if one.Committed {
			x.objects++
		}
		x.keys[one.Key], x.bodies[string(one.Body)] = true, true
	}
	return all
}

// check compares store and provider with each other, and with what was acknowledged in a cycle or after it.
func (s *siege) check(cycle, since int) {
	t := s.t
	t.Helper()
	s.resting.Store(true)
	defer s.resting.Store(false)
	s.db = s.open()
	defer func() { s.db = nil }()
	defer s.db.Close()
	before := byReference(s.provider.Writes())
	effects := s.effects()
	after := byReference(s.provider.Writes())
	known := map[string]effect{}
	for _, e := range effects {
		known[e.reference] = e
	}
	for reference, x := range before {
		e, ok := known[reference]
		if !ok {
			s.j.breach("the provider has a request of no effect: %s", reference)
			continue
		}
		if x.writes > e.attempts {
			s.j.breach("effect %s (%s): %d requests for %d attempts", e.id, e.connector, x.writes, e.attempts)
		}
	}
	texts := map[string]string{}
	for reference, x := range after {
		e, ok := known[reference]
		if !ok {
			continue // released since
		}
		proved := e.connector == string(keyed) || e.connector == string(both)
		switch {
		case x.objects > 1:
			s.j.breach("effect %s (%s): the provider has made %d objects of it", e.id, e.connector, x.objects)
		case !proved && x.afterObject > 0:
			s.j.breach("effect %s (%s): sent again after the provider had accepted it", e.id, e.connector)
		case len(x.bodies) > 1 || len(x.keys) > 1:
			s.j.breach("effect %s (%s): its requests differ", e.id, e.connector)
		case x.objects > 0 && e.state == holdpoint.EffectFailed:
			s.j.breach("effect %s (%s) is failed, and the provider has accepted it", e.id, e.connector)
		}
		for body := range x.bodies {
			var said struct{ Text string }
			if json.Unmarshal([]byte(body), &said) == nil && x.objects > 0 {
				if other := texts[said.Text]; other != "" {
					s.j.breach("one event was worked twice: %q, effects %s and %s", said.Text, other, e.id)
				}
				texts[said.Text] = e.id
			}
		}
	}
	for _, e := range effects {
		if x := after[e.reference]; e.state == holdpoint.EffectCompleted && (x == nil || x.objects == 0) {
			s.j.breach("effect %s (%s) is completed, and the provider has made nothing of it", e.id, e.connector)
		}
	}
	for what, statement := range never {
		if n, _ := s.query(statement); n > 0 {
			s.j.breach("%s, %d times", what, n)
		}
	}
	s.desk.mu.Lock()
	quiets := slices.Clone(s.desk.quiets)
	s.desk.quiets = nil
	s.desk.mu.Unlock()
	for _, q := range quiets {
		n, _ := s.query(`SELECT COUNT(*) FROM attempts a JOIN effects e ON e.tenant = a.tenant AND e.id = a.effect_id
 WHERE e.workflow = $1 AND a.begun_at > $2 AND a.begun_at < $3`, q.workflow, q.from.UnixMicro(), q.to.UnixMicro())
		if n > 0 {
			s.j.breach("%d attempts of %s began while its switch was off", n, q.workflow)
		}
	}
	r := rand.New(rand.NewPCG(s.seed, uint64(cycle)))
	for _, x := range s.j.since(since) {
		ctx, cancel := context.WithTimeout(t.Context(), later) // each: at the end there are thousands to read
		_, err := answer(ctx, s.load, r, func(srv *server) (struct{}, error) { return struct{}{}, x.holds(ctx, s.j, srv.otto) })
		cancel()
		require.NoError(t, err, "reading %s", x.key)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*later)
	defer cancel()
	_, err := answer(ctx, s.load, r, func(srv *server) (struct{}, error) { return struct{}{}, s.desk.holds(ctx, srv) })
	require.NoError(t, err)
}

// resolve says of an effect in doubt what the provider shows.
func (s *siege) resolve(x *server, e effect) error {
	word := client.Resolution{Verdict: holdpoint.VerdictNotSent, Reason: "nothing is there"}
	if objects := s.provider.Objects(e.reference); len(objects) > 0 {
		word = client.Resolution{Verdict: holdpoint.VerdictSent, ProviderID: objects[0].ID, Reason: "it is there"}
	}
	_, err := x.otto.Resolve(s.t.Context(), e.id, word)
	if errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeNotAllowedNow}) {
		return nil
	}
	return err
}

// report says what the siege has seen.
func (s *siege) report(cycles int, took time.Duration) {
	runs, _ := s.query("SELECT COUNT(*) FROM runs")
	doubted, _ := s.query("SELECT COUNT(*) FROM (SELECT DISTINCT tenant, run_id FROM events WHERE type = 'effect.unknown') AS d")
	attempts, _ := s.query("SELECT COUNT(*) FROM attempts")
	requests := 0
	for _, x := range byReference(s.provider.Writes()) {
		requests += x.writes
	}
	killed := 0
	for _, n := range s.hits {
		killed += n
	}
	counted := func(m map[string]int) string {
		var all []string
		for _, k := range slices.Sorted(maps.Keys(m)) {
			all = append(all, fmt.Sprintf("%s %d", k, m[k]))
		}
		return strings.Join(all, ", ")
	}
	s.t.Logf(`%s: %d cycles in %s: %s
killed at a point %d times, at %d of %d points; not met: %s
events %d, runs %d, calls %d (answered after a repetition %d), attempts %d, requests at the provider %d, effects ever in doubt %d, left to a person %d
longest from a death to a server that is ready: %s
points: %s`, s.place, cycles, took.Round(time.Second), counted(s.kinds), killed, len(s.hits), len(s.turn), counted(s.missed),
		s.events.Load(), runs, s.calls.Load(), s.retold.Load(), attempts, requests, doubted, s.unknown, s.slowest.Round(time.Millisecond), counted(s.hits))
}
