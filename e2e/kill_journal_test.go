//go:build e2e && kill

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
)

// story is what one client knows about one business event: only what a server has acknowledged to it.
type story struct {
	key string

	mu       sync.Mutex
	run      string
	version  int64                                       // the highest that was told
	owners   map[int64]string                            // who was told to hold the lease of a version
	asked    map[string]bool                             // approvals of drafts that were told to be held
	decided  map[string]holdpoint.ApprovalState          // what was told about them
	ended    holdpoint.RunState                          // a terminal state that was told
	effects  map[string]holdpoint.EffectState            // terminal states of effects that were told
	mayEnd   map[string]map[holdpoint.ApprovalState]bool // states into which a call without an answer may have moved an approval
	finished map[string]bool                             // steps that were told to be finished
	touched  int                                         // the cycle in which it was last worked on
}

// journal is what all clients of a siege know, and what they saw that must never be.
type journal struct {
	mu      sync.Mutex
	stories []*story
	broken  []string
}

func (j *journal) begin(key string) *story {
	s := &story{key: key, owners: map[int64]string{}, asked: map[string]bool{}, decided: map[string]holdpoint.ApprovalState{},
		effects: map[string]holdpoint.EffectState{}, mayEnd: map[string]map[holdpoint.ApprovalState]bool{}, finished: map[string]bool{}}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.stories = append(j.stories, s)
	return s
}

// breach notes something that must never be.
func (j *journal) breach(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.broken = append(j.broken, fmt.Sprintf(format, args...))
}

func (j *journal) breaches() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.broken)
}

// since gives the stories that were worked on in a cycle or after it.
func (j *journal) since(cycle int) []*story {
	j.mu.Lock()
	defer j.mu.Unlock()
	var all []*story
	for _, s := range j.stories {
		s.mu.Lock()
		if s.touched >= cycle {
			all = append(all, s)
		}
		s.mu.Unlock()
	}
	return all
}

// claimed notes an answer to a claim by an owner.
func (s *story) claimed(j *journal, owner string, c client.Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == "" {
		s.run = c.Run.ID
	}
	if s.run != c.Run.ID {
		j.breach("%s has the runs %s and %s", s.key, s.run, c.Run.ID)
	}
	s.version = max(s.version, c.Run.Version)
	if c.Outcome != holdpoint.Claimed {
		return
	}
	if other := s.owners[c.Lease.Version]; other != "" && other != owner {
		j.breach("%s: version %d was given to %s and to %s", s.key, c.Lease.Version, other, owner)
	}
	s.owners[c.Lease.Version] = owner
}

// told notes the state of a run.
func (s *story) told(r holdpoint.Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = max(s.version, r.Version)
	if r.State.Terminal() {
		s.ended = r.State
	}
}

func (s *story) held(approval string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[approval] = true
}

// moving notes that a call is about to be made which moves an approval; moved notes what its answer said.
func (s *story) moving(approval string, to holdpoint.ApprovalState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mayEnd[approval] == nil {
		s.mayEnd[approval] = map[holdpoint.ApprovalState]bool{}
	}
	s.mayEnd[approval][to] = true
}

func (s *story) moved(j *journal, approval string, to holdpoint.ApprovalState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.decided[approval]
	if was != "" && was != to && !(was == holdpoint.ApprovalApproved && to == holdpoint.ApprovalWithdrawn) {
		j.breach("%s: approval %s was told to be %s and then %s", s.key, approval, was, to)
	}
	s.decided[approval] = to
}

func (s *story) step(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished[name] = true
}

func (s *story) at(cycle int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.touched = cycle
}

// facts is what had been acknowledged at one moment.
type facts struct {
	run      string
	version  int64
	ended    holdpoint.RunState
	asked    map[string]bool
	decided  map[string]holdpoint.ApprovalState
	effects  map[string]holdpoint.EffectState
	finished map[string]bool
}

func (s *story) facts() facts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return facts{s.run, s.version, s.ended, maps.Clone(s.asked), maps.Clone(s.decided), maps.Clone(s.effects), maps.Clone(s.finished)}
}

// holds reads the story's run from a server and compares it with everything that had been acknowledged before. Only an
// error of the call itself is returned.
func (s *story) holds(ctx context.Context, j *journal, c *client.Client) error {
	was := s.facts()
	if was.run == "" {
		return nil // no claim was ever answered
	}
	r, err := c.Run(ctx, was.run)
	if errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeNotFound}) {
		j.breach("%s: run %s was acknowledged and is gone", s.key, was.run)
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case r.Key != s.key:
		j.breach("run %s is of %s, not of %s", r.ID, r.Key, s.key)
	case r.Version < was.version:
		j.breach("%s went back from version %d to %d", s.key, was.version, r.Version)
	case was.ended != "" && r.State != was.ended:
		j.breach("%s had ended %s and is %s", s.key, was.ended, r.State)
	}
	s.told(r.Run)
	states := map[string]holdpoint.ApprovalState{}
	for _, a := range r.Approvals {
		states[a.ID] = a.State
	}
	for a := range was.asked {
		if states[a] == "" {
			j.breach("%s: approval %s was acknowledged and is gone", s.key, a)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for a, told := range was.decided {
		if now := states[a]; now != told && (told != holdpoint.ApprovalApproved || !s.mayEnd[a][now]) {
			j.breach("%s: approval %s was told to be %s and is %s", s.key, a, told, now)
		}
	}
	for a, now := range states {
		if now != holdpoint.ApprovalPending && !s.mayEnd[a][now] {
			j.breach("%s: approval %s is %s, which nobody asked for", s.key, a, now)
		}
	}
	for name := range was.finished {
		if !slices.ContainsFunc(r.Steps, func(x client.Step) bool { return x.Name == name && x.State == holdpoint.StepCompleted }) {
			j.breach("%s: step %s was told to be finished and is not", s.key, name)
		}
	}
	for _, x := range r.Effects {
		if x.Planned {
			continue
		}
		if told := was.effects[x.ID]; told != "" && told != x.State {
			j.breach("%s: effect %s had ended %s and is %s", s.key, x.ID, told, x.State)
		}
		if x.State == holdpoint.EffectCompleted || x.State == holdpoint.EffectFailed {
			s.effects[x.ID] = x.State
		}
	}
	return nil
}

// ring is a switch or another single fact that one client moves.
type ring struct {
	mu    sync.Mutex
	told  string   // what was acknowledged last
	asked []string // all that was ever asked for, in order
	from  int      // the first of asked that came after told
}

func (r *ring) asking(value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, value)
}

func (r *ring) answered(value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told, r.from = value, len(r.asked)
}

// judge gives a function that says whether a value may be read from now on.
func (r *ring) judge() func(value string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	told, from := r.told, r.from
	return func(value string) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return told == "" || value == told || slices.Contains(r.asked[from:], value)
	}
}

// quiet is a time in which nothing of a workflow may begin: from the answer to its switch going off until it is turned on.
type quiet struct {
	workflow string
	from, to time.Time
}
