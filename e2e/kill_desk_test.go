//go:build e2e && kill

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/connector/mirror"
)

// desk is what people do to a siege's instance beside its work: switches, policies, accounts, keys, connectors, effects in
// doubt. Each task is done by one client at a time, in turn, or at once when a point inside it is armed.
type desk struct {
	*load
	w    *world
	wish chan string // the verb whose task is wanted now

	mu     sync.Mutex
	n      int
	on     map[string]*ring // switches by scope
	active ring             // hash of the policy
	people map[string]bool  // e-mail addresses that were told to exist
	keys   map[string]bool  // ids of keys that were told to be revoked
	quiets []quiet
}

func newDesk(l *load, w *world) *desk {
	return &desk{load: l, w: w, wish: make(chan string, 1), on: map[string]*ring{}, people: map[string]bool{}, keys: map[string]bool{}}
}

// task is one thing that is done at the desk, with the verbs of the store that it needs.
type task struct {
	verbs string
	do    func(d *desk, ctx context.Context, r *rand.Rand, name string) error
}

var tasks = []task{
	{"set_switch", (*desk).flip},
	{"store_policy activate_policy", (*desk).policy},
	{"create_person grant_role revoke_role disable_person", (*desk).person},
	{"create_key revoke_key", (*desk).aKey},
	{"cancel_effect cancel_run replace_run withdraw_approval", (*desk).cancel},
	{"hold_connector release_connector", (*desk).held},
	{"resolve_step", (*desk).uncertain},
	{"schedule_look_up resolve_effect", (*desk).doubts},
	{"end_work", (*desk).complete},
}

// sit does tasks until the context ends.
func (d *desk) sit(ctx context.Context) {
	r := rand.New(rand.NewPCG(d.seed, 1<<32))
	for next := 0; ; {
		t := tasks[next%len(tasks)]
		select {
		case <-ctx.Done():
			return
		case verb := <-d.wish:
			if i := slices.IndexFunc(tasks, func(t task) bool { return slices.Contains(strings.Fields(t.verbs), verb) }); i >= 0 {
				t = tasks[i]
			}
		case <-time.After(time.Duration(300+r.IntN(500)) * time.Millisecond):
			next++
		}
		d.n++
		if err := t.do(d, ctx, r, fmt.Sprintf("desk-%d", d.n)); err != nil && ctx.Err() == nil {
			d.j.breach("at the desk, %s: %v", t.verbs, err)
		}
	}
}

// done makes a call whose answer is nothing.
func (d *desk) done(ctx context.Context, r *rand.Rand, make func(*server) error) error {
	_, err := answer(ctx, d.load, r, func(s *server) (struct{}, error) { return struct{}{}, make(s) })
	return err
}

// is reports whether an error has one of some codes: what the repetition of a call answers whose first answer was lost.
func is(err error, codes ...holdpoint.Code) bool {
	return slices.ContainsFunc(codes, func(c holdpoint.Code) bool { return errors.Is(err, &holdpoint.Error{Code: c}) })
}

// flip turns the switch of one workflow off and, after a while in which nothing of it may begin, on again.
func (d *desk) flip(ctx context.Context, r *rand.Rand, _ string) error {
	flow := string(classes[r.IntN(len(classes))])
	if err := d.turn(ctx, r, "workflow:"+flow, false); err != nil {
		return err
	}
	q := quiet{workflow: flow, from: time.Now()}
	pause(ctx, 300*time.Millisecond)
	q.to = time.Now()
	d.mu.Lock()
	d.quiets = append(d.quiets, q)
	d.mu.Unlock()
	return d.turn(ctx, r, "workflow:"+flow, true)
}

func (d *desk) turn(ctx context.Context, r *rand.Rand, scope string, on bool) error {
	d.mu.Lock()
	if d.on[scope] == nil {
		d.on[scope] = &ring{}
	}
	x := d.on[scope]
	d.mu.Unlock()
	x.asking(fmt.Sprint(on))
	_, err := answer(ctx, d.load, r, func(s *server) (client.Flipped, error) { return s.otto.SetSwitch(ctx, scope, on, "a test") })
	if err == nil {
		x.answered(fmt.Sprint(on))
	}
	return err
}

// policy puts another policy in force, which changes nothing for the work.
func (d *desk) policy(ctx context.Context, r *rand.Rand, _ string) error {
	document := strings.ReplaceAll(besieged, "PROVIDER", d.w.provider.URL()) + flow(fmt.Sprintf("extra%d", d.n%3), "desk")
	stored, err := answer(ctx, d.load, r, func(s *server) (client.StoredPolicy, error) {
		return s.otto.PutPolicy(ctx, document, map[string]string{"draft.json": contract})
	})
	if err != nil {
		return err
	}
	now, err := answer(ctx, d.load, r, func(s *server) (client.Policy, error) { return s.otto.Policy(ctx, "active") })
	if err != nil || now.Hash == stored.Hash {
		return err
	}
	d.active.asking(stored.Hash)
	err = d.done(ctx, r, func(s *server) error { return s.otto.ActivatePolicy(ctx, stored.Hash, now.Hash) })
	if err == nil || is(err, holdpoint.CodePolicyMoved) { // nobody else activates: it was this very call that moved it
		d.active.answered(stored.Hash)
		return nil
	}
	return err
}

func (d *desk) person(ctx context.Context, r *rand.Rand, name string) error {
	email := name + "@acme.example"
	_, err := answer(ctx, d.load, r, func(s *server) (client.NewUser, error) { return s.otto.AddUser(ctx, email, "correct horse battery") })
	if err != nil && !is(err, holdpoint.CodeExists) {
		return err
	}
	d.mu.Lock()
	d.people[email] = true
	d.mu.Unlock()
	for _, call := range []func(*server) error{
		func(s *server) error { return s.otto.GrantRole(ctx, email, "auditor") },
		func(s *server) error { return s.otto.RevokeRole(ctx, email, "auditor") },
		func(s *server) error { return s.otto.DisableUser(ctx, email) },
	} {
		if err := d.done(ctx, r, call); err != nil && !is(err, holdpoint.CodeNotFound, holdpoint.CodeNotAllowedNow) {
			return err
		}
	}
	return nil
}

func (d *desk) aKey(ctx context.Context, r *rand.Rand, name string) error {
	k, err := answer(ctx, d.load, r, func(s *server) (client.NewKey, error) {
		return s.otto.CreateKey(ctx, name, []holdpoint.Scope{holdpoint.ScopeRead})
	})
	if err != nil {
		return err
	}
	if err := d.done(ctx, r, func(s *server) error { _, err := client.New(s.url, k.Key).Me(ctx); return err }); err != nil {
		return err
	}
	if err := d.done(ctx, r, func(s *server) error { return s.otto.RevokeKey(ctx, k.ID) }); err != nil && !is(err, holdpoint.CodeNotFound) {
		return err
	}
	d.mu.Lock()
	d.keys[k.Key] = true
	d.mu.Unlock()
	return nil
}

// brought takes an event of the desk's own workflow to its approval.
func (d *desk) brought(ctx context.Context, r *rand.Rand, key string, approve bool) (*story, string, error) {
	s := d.j.begin(key)
	s.at(int(d.cycle.Load()))
	w, run, ok := d.deliver(ctx, r, s, "desk")
	if !ok {
		return s, "", ctx.Err()
	}
	a, ok := d.draft(ctx, r, s, run, w, false)
	if !ok {
		return s, "", ctx.Err()
	}
	s.moving(a.ID, holdpoint.ApprovalWithdrawn)
	s.moving(a.ID, holdpoint.ApprovalInvalidated)
	if approve {
		d.word(ctx, r, s, a, true, holdpoint.DecisionApprove)
	}
	return s, run, nil
}

// cancel ends an effect that a switch holds back, a run, a question, and a run that a correction replaces.
func (d *desk) cancel(ctx context.Context, r *rand.Rand, name string) error {
	if err := d.turn(ctx, r, "workflow:desk", false); err != nil {
		return err
	}
	_, run, err := d.brought(ctx, r, name+"-effect", true)
	if err == nil && run != "" {
		var x client.Run
		if x, err = answer(ctx, d.load, r, func(s *server) (client.Run, error) { return s.otto.Run(ctx, run) }); err == nil {
			for _, e := range x.Effects {
				err = d.done(ctx, r, func(s *server) error { _, err := s.otto.CancelEffect(ctx, e.ID, "a mistake"); return err })
			}
		}
	}
	if err != nil && !is(err, holdpoint.CodeNotAllowedNow) {
		return err
	}
	if err := d.turn(ctx, r, "workflow:desk", true); err != nil {
		return err
	}
	if _, run, err = d.brought(ctx, r, name+"-run", false); err != nil || run == "" {
		return err
	}
	if err := d.done(ctx, r, func(s *server) error { _, err := s.otto.CancelRun(ctx, run, "a mistake"); return err }); err != nil && !is(err, holdpoint.CodeNotAllowedNow) {
		return err
	}
	asked, run, err := d.brought(ctx, r, name+"-question", false)
	if err != nil || run == "" {
		return err
	}
	for a := range asked.facts().asked {
		if err := d.done(ctx, r, func(s *server) error { _, err := s.otto.Withdraw(ctx, a, "a mistake"); return err }); err != nil && !is(err, holdpoint.CodeNotAllowedNow) {
			return err
		}
	}
	if _, run, err = d.brought(ctx, r, name+"-old", false); err != nil || run == "" {
		return err
	}
	correction := id(r)
	return d.done(ctx, r, func(s *server) error {
		_, err := s.otto.Replace(ctx, run, client.ReplaceRequest{Key: correction, Payload: event(name), Reason: "corrected"})
		return err
	})
}

// held has the provider refuse the desk's credentials, which holds the connector, and lets it go again.
func (d *desk) held(ctx context.Context, r *rand.Rand, name string) error {
	d.w.provider.Queue("/desk", mirror.Status(http.StatusUnauthorized, "", nil))
	if _, run, err := d.brought(ctx, r, name, true); err != nil || run == "" {
		return err
	}
	for range 10 {
		n, err := answer(ctx, d.load, r, func(s *server) (int, error) { return s.otto.ReleaseConnector(ctx, "desk") })
		if err != nil || n > 0 || !pause(ctx, 100*time.Millisecond) {
			return err
		}
	}
	return nil
}

// uncertain loses a step that was declared a side effect, and says what became of it.
func (d *desk) uncertain(ctx context.Context, r *rand.Rand, name string) error {
	s := d.j.begin(name)
	s.at(int(d.cycle.Load()))
	short := holdpoint.Duration(time.Second)
	for n := range 2 {
		owner := id(r)
		c, err := answer(ctx, d.load, r, func(x *server) (client.Claim, error) {
			return x.machine.Claim(ctx, client.ClaimRequest{Workflow: "desk", Key: name, Payload: event(name), Owner: owner, Lease: &short})
		})
		if err != nil {
			return err
		}
		s.claimed(d.j, owner, c)
		if c.Outcome != holdpoint.Claimed {
			return nil
		}
		_, err = answer(ctx, d.load, r, func(x *server) (client.StepAnswer, error) {
			return x.machine.BeginStep(ctx, c.Run.ID, "write", client.StepRequest{Work: client.Work{Owner: owner, Version: c.Lease.Version}, SideEffect: true})
		})
		if is(err, holdpoint.CodeLeaseLost) {
			return nil // the servers were away for longer than the lease
		}
		if err != nil {
			return err
		}
		if n == 0 && !pause(ctx, 1200*time.Millisecond) {
			return nil
		}
	}
	err := d.done(ctx, r, func(x *server) error {
		_, err := x.otto.ResolveStep(ctx, s.facts().run, "write", client.StepResolution{Verdict: "done", Result: json.RawMessage(`{}`), Reason: "it is there"})
		return err
	})
	if err == nil {
		s.step("write")
	}
	if is(err, holdpoint.CodeNotAllowedNow) {
		return nil
	}
	return err
}

// doubts asks for a look-up of effects in doubt, and says of one that cannot be looked up what the provider shows.
func (d *desk) doubts(ctx context.Context, r *rand.Rand, _ string) error {
	page, err := answer(ctx, d.load, r, func(s *server) (client.EffectPage, error) {
		return s.otto.Effects(ctx, client.EffectQuery{State: holdpoint.EffectUnknown, Limit: 100})
	})
	if err != nil {
		return err
	}
	asked, resolved := false, false
	for _, x := range page.Effects {
		var err error
		objects := d.w.provider.Objects(x.Reference)
		switch {
		case x.Connector == string(looked) && !asked:
			asked = true
			err = d.done(ctx, r, func(s *server) error { _, err := s.otto.Reconcile(ctx, x.ID); return err })
		case x.Connector == string(plain) && !resolved && len(objects) > 0:
			resolved = true
			err = d.done(ctx, r, func(s *server) error {
				_, err := s.otto.Resolve(ctx, x.ID, client.Resolution{Verdict: holdpoint.VerdictSent, ProviderID: objects[0].ID, Reason: "it is there"})
				return err
			})
		}
		if err != nil && !is(err, holdpoint.CodeNotAllowedNow) {
			return err
		}
	}
	return nil
}

// complete ends a run that needs no effect.
func (d *desk) complete(ctx context.Context, r *rand.Rand, name string) error {
	s := d.j.begin(name)
	s.at(int(d.cycle.Load()))
	w, run, ok := d.deliver(ctx, r, s, "desk")
	if !ok {
		return ctx.Err()
	}
	x, err := answer(ctx, d.load, r, func(x *server) (holdpoint.Run, error) {
		return x.machine.Complete(ctx, run, w, json.RawMessage(`{"spam": true}`))
	})
	if err == nil {
		s.told(x)
	}
	if is(err, holdpoint.CodeLeaseLost) {
		return nil
	}
	return err
}

// holds compares what stands with what was acknowledged at the desk.
func (d *desk) holds(ctx context.Context, s *server) error {
	d.mu.Lock()
	people, keys := make(map[string]bool), make([]string, 0, 8)
	for email := range d.people {
		people[email] = true
	}
	for k := range d.keys {
		keys = append(keys, k)
	}
	on := make(map[string]func(string) bool, len(d.on))
	for scope, x := range d.on {
		on[scope] = x.judge()
	}
	active := d.active.judge()
	d.mu.Unlock()
	switches, err := s.otto.Switches(ctx)
	if err != nil {
		return err
	}
	for _, x := range switches.Switches {
		if allowed := on[x.Scope]; allowed != nil && !allowed(fmt.Sprint(x.On)) {
			d.j.breach("switch %s is on=%t, which is not what was acknowledged", x.Scope, x.On)
		}
	}
	p, err := s.otto.Policy(ctx, "active")
	if err != nil {
		return err
	}
	if !active(p.Hash) {
		d.j.breach("policy %s is active, which is not what was acknowledged", p.Hash)
	}
	users, err := s.otto.Users(ctx)
	if err != nil {
		return err
	}
	for _, u := range users {
		delete(people, u.Email)
	}
	for email := range people {
		d.j.breach("%s was acknowledged and is gone", email)
	}
	for _, k := range keys[:min(3, len(keys))] { // those of a map: other ones each time
		if _, err := client.New(s.url, k).Me(ctx); err == nil {
			d.j.breach("a key that was revoked opens something")
		} else if !is(err, holdpoint.CodeUnauthenticated) {
			return err
		}
	}
	return nil
}
