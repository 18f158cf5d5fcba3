package storetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

var worker = holdpoint.Who{Kind: "machine", ID: "key", How: "bearer"}

// sample is a run on its way through the verbs, for the reads to find.
type sample struct {
	t        testing.TB
	s        store.Store
	run      holdpoint.Run
	fence    store.Fence
	approval holdpoint.Approval
	draft    store.Draft
}

func claimSample(t testing.TB, s store.Store, tenant, workflow, key string) *sample {
	t.Helper()
	c := store.Claim{RunID: newID(), Tenant: tenant, Scope: workflow, Workflow: workflow, Key: key, KeyHMAC: "hmac:" + key,
		Operation: &holdpoint.Operation{Source: "crm", Record: "record:" + key, Action: "reply"}, Fingerprint: "f", FingerprintRule: "r", Ignore: []string{},
		Owner: "owner", Lease: 5 * time.Minute, Cap: 30 * time.Minute, AttemptLimit: 3, Budget: 2 * time.Hour, StealCap: 5, PolicyHash: "p",
		Payload: []byte("payload"), Initiator: []byte("initiator"), ResumeURL: []byte("resume"), RunKey: []byte("key"), Who: worker}
	got, err := s.ClaimRuns(context.Background(), []store.Claim{c})
	require.NoError(t, err)
	require.Equal(t, holdpoint.Claimed, got[0].Outcome)
	return &sample{t: t, s: s, run: got[0].Run,
		fence: store.Fence{Tenant: tenant, RunID: got[0].Run.ID, Owner: "owner", Version: got[0].Run.Version}}
}

// hold submits a draft with two effects, note after reply.
func (p *sample) hold() *sample {
	p.t.Helper()
	run := p.run
	effect := func(order int, slot, typ, connector string, after ...string) store.PlannedEffect {
		return store.PlannedEffect{Target: []byte("target"), Payload: []byte("bytes of " + slot), EffectSpec: holdpoint.EffectSpec{ID: newID(), RunID: run.ID,
			Workflow: run.Workflow, Revision: run.Revision + 1, Order: order, Slot: slot, Type: typ, Connector: connector, ConnectorVersion: "v1", Provider: "https://crm.example",
			Consequence: "crm_change", TargetIndex: "t:" + run.Key, PayloadHash: "ph", ProviderKey: "pk", Reference: "ref", After: after}}
	}
	reply := effect(0, "reply", "email.reply", "mail")
	reply.Reversible = &holdpoint.Reversible{By: "a call", Within: holdpoint.Duration(time.Minute)}
	approval := newID()
	p.fence.Call = "hold:" + approval
	p.draft = store.Draft{Fence: p.fence,
		Draft:  holdpoint.Draft{RunID: run.ID, Revision: run.Revision + 1, OutputHash: "oh", Model: holdpoint.Model{Name: "m", Revision: "7"}, PolicyHash: "p"},
		Output: []byte("output"), SourceURL: []byte("source"),
		Approval: holdpoint.Approval{ID: approval, Workflow: run.Workflow, Revision: run.Revision + 1, Digest: "d:" + run.Key, PolicyHash: "p", Kind: "draft", Why: "gate",
			Roles: []string{"lead"}, Quorum: 1, Assurance: "login", Allowed: []holdpoint.Decision{holdpoint.DecisionApprove, holdpoint.DecisionReject, holdpoint.DecisionSendBack},
			ExecuteWithin: holdpoint.Duration(48 * time.Hour)},
		ApproveBy: 24 * time.Hour, Effects: []store.PlannedEffect{reply, effect(1, "note", "crm.note", "crm", "reply")},
		Challenges: []holdpoint.Challenge{{ID: newID(), Tenant: run.Tenant, ApprovalID: approval, Email: "ana@acme.example", Channel: "mail"}},
		Messages:   []store.Message{newMessage(run.Tenant)}, Who: worker}
	p.draft.Messages[0].RunID, p.draft.Messages[0].ApprovalID = run.ID, approval
	var err error
	p.run, p.approval, err = p.s.HoldDraft(context.Background(), p.draft)
	require.NoError(p.t, err)
	return p
}

func (p *sample) approve() *sample {
	p.t.Helper()
	got, err := p.s.Decide(context.Background(), store.Decision{Tenant: p.run.Tenant, ID: newID(), ApprovalID: p.approval.ID, Digest: p.approval.Digest,
		Person: holdpoint.Person{ID: "ana", Tenant: p.run.Tenant, Email: "ana@acme.example"}, Decision: holdpoint.DecisionApprove, ReasonText: []byte("reason"),
		Assurance: "login", How: "session", Who: admin})
	require.NoError(p.t, err)
	p.run, p.approval = got.Run, got.Approval
	return p
}

// released makes a run whose effects are in the outbox.
func released(t testing.TB, s store.Store, tenant, workflow, key string) *sample {
	t.Helper()
	return claimSample(t, s, tenant, workflow, key).hold().approve()
}

// effect gives the id of a slot.
func (p *sample) effect(slot string) string {
	for _, e := range p.draft.Effects {
		if e.Slot == slot {
			return e.ID
		}
	}
	p.t.Fatalf("no slot %s", slot)
	return ""
}

func flip(t testing.TB, s store.Store, tenant string, on bool, scopes ...string) {
	t.Helper()
	for _, scope := range scopes {
		_, _, err := s.SetSwitch(context.Background(), store.SwitchChange{Tenant: tenant, Scope: scope, On: on, Who: admin})
		require.NoError(t, err)
	}
}

// send leases all due effects and settles each attempt with one outcome.
func send(t testing.TB, s store.Store, result holdpoint.Result, state holdpoint.EffectState, trigger string) {
	t.Helper()
	ctx := context.Background()
	leased, err := s.LeaseEffects(ctx, store.EffectLease{Owner: "d", For: time.Minute, Limit: 10, Enabled: true})
	require.NoError(t, err)
	require.NotEmpty(t, leased)
	for _, e := range leased {
		begun, err := s.BeginAttempts(ctx, "d", []store.AttemptBegin{{ID: newID(), Tenant: e.Tenant, EffectID: e.ID, RunID: e.RunID, Version: e.Version, WireHash: "w", SendBefore: 10 * time.Second}})
		require.NoError(t, err)
		require.Len(t, begun, 1)
		_, err = s.SettleAttempts(ctx, "d", []store.Settlement{{Tenant: e.Tenant, RunID: e.RunID, EffectID: e.ID, AttemptID: begun[0].ID, Version: begun[0].Version,
			Outcome: holdpoint.Outcome{Result: result, Phase: holdpoint.PhaseComplete, ProviderID: "x1"}, State: state, Trigger: trigger,
			PossiblyCommitted: result == holdpoint.Unclear, Spend: true, Next: time.Minute, Who: worker}})
		require.NoError(t, err)
	}
}

func testRecord(t *testing.T, open func(t testing.TB, now func() time.Time) store.Store) {
	ctx := context.Background()

	t.Run("a record is everything that hangs on one run", func(t *testing.T) {
		s := newFixture(t, open).Store
		flip(t, s, "acme", true, "global", "tenant")
		released(t, s, "acme", "ticket", "other")
		p := claimSample(t, s, "acme", "ticket", "k1")
		_, err := s.BeginStep(ctx, p.fence, store.StepBegin{Name: "lookup", SideEffect: true, InputHash: "in", Who: worker})
		require.NoError(t, err)
		p.fence.Call = "finish"
		_, err = s.FinishStep(ctx, p.fence, store.StepFinish{Name: "lookup", Result: []byte("result"), ResultHash: "rh", Who: worker})
		require.NoError(t, err)
		p.hold()

		r, err := s.Record(ctx, "acme", p.run.ID)
		require.NoError(t, err)
		require.Equal(t, p.run, r.Run)
		require.Equal(t, []string{"key", "payload", "initiator", "resume"}, []string{string(r.RunKey), string(r.Payload), string(r.Initiator), string(r.ResumeURL)})
		require.Nil(t, r.Result)
		require.Nil(t, r.FailText)
		require.Equal(t, start, r.Now)
		p.draft.Draft.CreatedAt = r.Now
		require.Equal(t, []store.DraftRow{{Draft: p.draft.Draft, Output: []byte("output"), SourceURL: []byte("source")}}, r.Drafts)
		require.Len(t, r.Planned, 2)
		require.Equal(t, p.draft.Effects[0].Payload, r.Planned[0].Payload)
		require.Equal(t, p.draft.Effects[1].EffectSpec, r.Planned[1].EffectSpec)
		require.Equal(t, p.draft.Effects[0].Reversible, r.Planned[0].Reversible)
		require.Empty(t, r.Effects)
		require.Empty(t, r.Attempts)
		require.Empty(t, r.Decisions)
		require.Equal(t, []holdpoint.Approval{p.approval}, r.Approvals)
		require.Len(t, r.Challenges, 1)
		require.Equal(t, p.draft.Challenges[0].ID, r.Challenges[0].ID)
		require.Equal(t, p.approval.ApproveBy, r.Challenges[0].ExpiresAt)
		require.Len(t, r.Messages, 1)
		require.Equal(t, p.draft.Messages[0].ID, r.Messages[0].ID)
		require.Len(t, r.Steps, 1)
		require.Equal(t, holdpoint.Step{RunID: p.run.ID, Name: "lookup", State: holdpoint.StepCompleted, SideEffect: true, InputHash: "in", ResultHash: "rh",
			LeaseVersion: p.fence.Version, Begins: 1, UpdatedAt: r.Now}, r.Steps[0].Step)
		require.Equal(t, []byte("result"), r.Steps[0].Result)

		p.approve()
		send(t, s, holdpoint.Accepted, holdpoint.EffectCompleted, "accept") // the replies of both runs
		r, err = s.Record(ctx, "acme", p.run.ID)
		require.NoError(t, err)
		require.Len(t, r.Effects, 2)
		require.Equal(t, []string{"reply", "note"}, []string{r.Effects[0].Slot, r.Effects[1].Slot})
		require.Equal(t, []holdpoint.EffectState{holdpoint.EffectCompleted, holdpoint.EffectPending}, []holdpoint.EffectState{r.Effects[0].State, r.Effects[1].State})
		require.Equal(t, []byte("bytes of note"), r.Effects[1].Payload)
		require.Equal(t, []byte("target"), r.Effects[1].Target)
		require.Len(t, r.Attempts, 1)
		require.Equal(t, r.Effects[0].ID, r.Attempts[0].EffectID)
		require.Len(t, r.Decisions, 1)
		require.Equal(t, "ana", r.Decisions[0].PersonID)
		require.Equal(t, []byte("reason"), r.Decisions[0].ReasonText)

		_, err = s.Record(ctx, "other", p.run.ID)
		requireCode(t, holdpoint.CodeNotFound, err)
		_, err = s.Record(ctx, "acme", newID())
		requireCode(t, holdpoint.CodeNotFound, err)
	})

	t.Run("a record is of one moment", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		const n = 12
		samples := make([]*sample, n)
		for i := range samples {
			samples[i] = claimSample(t, s, "acme", "ticket", fmt.Sprint("k", i)).hold()
		}
		var next atomic.Int64 // the run that is decided now, which is the one worth reading
		errs := simultaneously(3, func(i int) error {
			if i == 0 {
				for i, p := range samples {
					next.Store(int64(i))
					p.approve()
				}
				next.Store(n)
				return nil
			}
			for at := next.Load(); at < n; at = next.Load() {
				r, err := s.Record(ctx, "acme", samples[at].draft.Fence.RunID)
				if err != nil {
					return err
				}
				approved := r.Run.State == holdpoint.RunApproved
				if approved != (len(r.Effects) == 2) || approved != (len(r.Decisions) == 1) || approved != (r.Approvals[0].State == holdpoint.ApprovalApproved) {
					return fmt.Errorf("run %s has %d effects, %d decisions, approval %s", r.Run.State, len(r.Effects), len(r.Decisions), r.Approvals[0].State)
				}
			}
			return nil
		})
		for _, err := range errs {
			require.NoError(t, err)
		}
	})

	t.Run("events come in order and without gaps", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		p := claimSample(t, s, "acme", "ticket", "k1")
		before, err := s.Events(ctx, "acme", p.run.ID)
		require.NoError(t, err)
		read := func(run string) holdpoint.Event {
			return holdpoint.Event{Tenant: "acme", RunID: run, Type: "content.read", Who: admin, Data: map[string]any{"part": "payload"}}
		}
		const n = 6
		for _, err := range simultaneously(n, func(int) error { return s.AddEvents(ctx, []holdpoint.Event{read(""), read(p.run.ID), read(p.run.ID)}) }) {
			require.NoError(t, err)
		}
		after, err := s.Events(ctx, "acme", p.run.ID)
		require.NoError(t, err)
		require.Len(t, after, len(before)+2*n)
		for i, e := range after {
			require.EqualValues(t, i+1, e.Seq)
			require.Equal(t, p.run.ID, e.RunID)
			require.NotEmpty(t, e.ID)
			require.False(t, e.At.IsZero())
		}
		last := after[len(after)-1]
		require.Equal(t, "content.read", last.Type)
		require.Equal(t, admin, last.Who)
		require.Equal(t, map[string]any{"part": "payload"}, last.Data)
		require.Len(t, tenantEvents(t, s, "acme"), 1+n)

		requireCode(t, holdpoint.CodeNotFound, s.AddEvents(ctx, []holdpoint.Event{read(p.run.ID), read(newID())}))
		require.NoError(t, s.AddEvents(ctx, nil))
		again, err := s.Events(ctx, "acme", p.run.ID)
		require.NoError(t, err)
		require.Equal(t, after, again, "an event that cannot be written takes the others with it")
		none, err := s.Events(ctx, "other", p.run.ID)
		require.NoError(t, err)
		require.Empty(t, none)
	})
}
