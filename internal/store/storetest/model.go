package storetest

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// model is store.Store in memory: what each verb must answer and leave, written from the contract and the tables of
// transitions. It serves one caller at a time, so it has nothing of what makes a store hard.
type model struct {
	clock    func() time.Time
	tenants  map[string]*modelTenant
	runs     map[modelRef]*modelRun
	tokens   map[string]modelRef // of challenges
	switches map[modelRef]holdpoint.Switch
	stopped  map[[3]string]store.ConnectorHold // by tenant, connector and type
	proofs   map[[3]string]store.Proof         // by tenant, connector and version
	messages []*modelMessage
	keys     map[string]*holdpoint.Key // by hash of the token
	sessions map[string]*modelSession  // by hash of the token
}

var _ store.Store = (*model)(nil)

// modelRef names a row.
type modelRef struct{ tenant, id string }

type modelTenant struct {
	store.Tenant
	events   []holdpoint.Event
	people   map[string]*holdpoint.Person
	policies []store.PolicyRow
}

// modelRun is a run with all that hangs on it. Effects carry their own holds, and not what stands in their way besides.
type modelRun struct {
	store.Record
	hmac      string
	events    []holdpoint.Event
	told      int       // duplicates that have become events
	duplicate time.Time // the last one
	claimable bool      // run.claimable was told since it fell due
	worked    *time.Duration
	heldAt    map[string]time.Time // by effect
	doubtedAt map[string]time.Time // by effect
	proved    map[string]time.Time // end of the proved key life, by attempt
}

func newModel(clock func() time.Time) *model {
	return &model{clock: clock, tenants: map[string]*modelTenant{}, runs: map[modelRef]*modelRun{}, tokens: map[string]modelRef{},
		switches: map[modelRef]holdpoint.Switch{}, stopped: map[[3]string]store.ConnectorHold{}, proofs: map[[3]string]store.Proof{},
		keys: map[string]*holdpoint.Key{}, sessions: map[string]*modelSession{}}
}

func (m *model) Now(context.Context) (time.Time, error) { return m.clock(), nil }
func (m *model) Ping(context.Context) error             { return nil }
func (m *model) Wake() <-chan string                    { return nil }
func (m *model) Close() error                           { return nil }

// refused is a refusal. The model knows its code only.
func refused(code holdpoint.Code) error { return holdpoint.Errorf(code, "the model refuses") }

// run finds a run; not_found.
func (m *model) run(tenant, id string) (*modelRun, error) {
	if r := m.runs[modelRef{tenant, id}]; r != nil {
		return r, nil
	}
	return nil, refused(holdpoint.CodeNotFound)
}

// sorted gives the runs of a tenant in the order of their ids; "" is all tenants.
func (m *model) sorted(tenant string) (all []*modelRun) {
	for _, ref := range slices.SortedFunc(maps.Keys(m.runs), func(a, b modelRef) int { return strings.Compare(a.id, b.id) }) {
		if tenant == "" || ref.tenant == tenant {
			all = append(all, m.runs[ref])
		}
	}
	return all
}

// tell adds evidence to a run.
func (m *model) tell(r *modelRun, kinds ...string) {
	for _, kind := range kinds {
		r.events = append(r.events, holdpoint.Event{Tenant: r.Run.Tenant, RunID: r.Run.ID, Seq: int64(len(r.events) + 1), Type: kind, At: m.clock()})
	}
}

// tellTenant adds evidence to a tenant.
func (m *model) tellTenant(t *modelTenant, kinds ...string) {
	for _, kind := range kinds {
		t.events = append(t.events, holdpoint.Event{Tenant: t.Name, Seq: int64(len(t.events) + 1), Type: kind, At: m.clock()})
	}
}

// queue takes messages into the lane, due now.
func (m *model) queue(messages []store.Message) {
	for _, msg := range messages {
		msg.State, msg.CreatedAt, msg.Attempts, msg.DeliveredAt = "pending", m.clock(), 0, nil
		m.messages = append(m.messages, &modelMessage{Message: msg, next: m.clock()})
	}
}

// verb runs what one verb does to some runs: all of it, or nothing if it is refused.
func (m *model) verb(fn func() error, runs ...*modelRun) error {
	before := make([]modelRun, len(runs))
	for i, r := range runs {
		before[i] = r.clone()
	}
	queued := len(m.messages)
	err := fn()
	if err != nil {
		m.messages = m.messages[:queued]
		for i, r := range runs {
			*r = before[i]
		}
	}
	return err
}

func (r *modelRun) clone() modelRun {
	c := *r
	c.Drafts, c.Planned, c.Effects, c.Attempts = slices.Clone(r.Drafts), slices.Clone(r.Planned), slices.Clone(r.Effects), slices.Clone(r.Attempts)
	c.Steps, c.Approvals, c.Challenges = slices.Clone(r.Steps), slices.Clone(r.Approvals), slices.Clone(r.Challenges)
	c.Decisions, c.events = slices.Clone(r.Decisions), slices.Clone(r.events)
	c.heldAt, c.doubtedAt, c.proved = maps.Clone(r.heldAt), maps.Clone(r.doubtedAt), maps.Clone(r.proved)
	return c
}

// turn makes one transition of a run: its lease is over, and state, reason and class are those of the move.
func (m *model) turn(r *modelRun, to holdpoint.RunState, trigger string, reason holdpoint.Reason, class holdpoint.FailureClass) error {
	run := &r.Run
	if !holdpoint.Allowed(holdpoint.RunTransitions, run.State, to, trigger) {
		return refused(holdpoint.CodeNotAllowedNow)
	}
	run.State, run.Reason, run.FailureClass, run.Version = to, reason, class, run.Version+1
	run.LeaseExpiresAt, run.LeaseCapAt, run.RetryAt, run.EndedAt, r.claimable = nil, nil, nil, nil, false
	if to.Terminal() {
		run.EndedAt = new(m.clock())
	}
	return nil
}

// turnApproval makes one transition of an approval.
func (m *model) turnApproval(r *modelRun, a *holdpoint.Approval, to holdpoint.ApprovalState, trigger string) error {
	if !holdpoint.Allowed(holdpoint.ApprovalTransitions, a.State, to, trigger) {
		return refused(holdpoint.CodeNotAllowedNow)
	}
	a.State, a.Version = to, a.Version+1
	m.tell(r, "approval."+string(to))
	return nil
}

// closeApprovals ends the pending approvals of a run, and all ways in to them that were not used.
func (m *model) closeApprovals(r *modelRun, to holdpoint.ApprovalState, trigger string) error {
	for i := range r.Approvals {
		if a := &r.Approvals[i]; a.State == holdpoint.ApprovalPending {
			if err := m.turnApproval(r, a, to, trigger); err != nil {
				return err
			}
			m.revoke(r, a.ID)
		}
	}
	return nil
}

// revoke ends the ways in to an approval that were not used.
func (m *model) revoke(r *modelRun, approvalID string) {
	for i := range r.Challenges {
		if c := &r.Challenges[i]; c.ApprovalID == approvalID && c.UsedAt == nil && c.RevokedAt == nil {
			c.RevokedAt = new(m.clock())
		}
	}
}

// past reports whether a time has come: now counts.
func (m *model) past(t time.Time) bool { return !t.After(m.clock()) }
