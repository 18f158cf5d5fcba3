// Package storetest is the conformance suite of store.Store: every implementation, on every database, answers alike.
package storetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// Run checks a store. open gives an empty, migrated store that ends with its test; now is its clock, or nil for the
// database's.
func Run(t *testing.T, open func(t testing.TB, now func() time.Time) store.Store) {
	for _, suite := range []struct {
		name string
		test func(*testing.T, func(testing.TB, func() time.Time) store.Store)
	}{
		{"Claims", testClaims},
		{"ClaimRaces", testClaimRaces},
		{"Fences", testFences},
		{"Work", testWork},
		{"Steps", testSteps},
		{"Replacements", testReplacements},
		{"Cancellations", testCancellations},
		{"Sweeps", testSweeps},
		{"Gates", testGates},
		{"Outbox", testOutbox},
		{"Reconcile", testReconcile},
		{"Switches", testSwitches},
		{"Sequences", testSequences},
		{"People", testPeople},
		{"Keys", testKeys},
		{"Policies", testPolicies},
		{"Messages", testMessages},
		{"Record", testRecord},
		{"Find", testFind},
		{"Holds", testHolds},
	} {
		t.Run(suite.name, func(t *testing.T) { suite.test(t, open) })
	}
}

// fixture is a store with one tenant and a clock that a test moves.
type fixture struct {
	store.Store
	t      *testing.T
	ctx    context.Context
	tenant string
	micros *atomic.Int64
}

// machine is the actor of everything that a fixture does.
var machine = holdpoint.Who{Kind: "machine", ID: "key-1", How: "key"}

// start is when a fixture's clock begins.
var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// newFixture opens a store whose clock stands still until advance.
func newFixture(t *testing.T, open func(testing.TB, func() time.Time) store.Store) *fixture {
	t.Helper()
	f := &fixture{t: t, ctx: t.Context(), tenant: "acme", micros: new(atomic.Int64)}
	f.micros.Store(start.UnixMicro())
	f.Store = open(t, f.now)
	createTenant(t, f.Store, f.tenant)
	return f
}

func createTenant(t *testing.T, s store.Store, name string) {
	t.Helper()
	require.NoError(t, s.CreateTenant(t.Context(), store.Tenant{Name: name, EffectKey: []byte("effect"), IndexKey: []byte("index")}, machine))
}

func (f *fixture) now() time.Time { return time.UnixMicro(f.micros.Load()).UTC() }

func (f *fixture) advance(d time.Duration) { f.micros.Add(d.Microseconds()) }

// on is the same fixture and clock, for a subtest.
func (f *fixture) on(t *testing.T) *fixture {
	g := *f
	g.t, g.ctx = t, t.Context()
	return &g
}

// newClaim is a claim of a key with a lease of a minute, three attempts in an hour and two steals.
func newClaim(tenant, key string) store.Claim {
	return store.Claim{RunID: uuid.Must(uuid.NewV7()).String(), Tenant: tenant, Scope: "refund", Workflow: "refund", Key: key, KeyHMAC: "hmac-" + key,
		Fingerprint: "fp-" + key, FingerprintRule: "rule-1", Ignore: []string{"/sent_at"}, Owner: uuid.NewString(), ExecutionID: "exec-1",
		Lease: time.Minute, Cap: 10 * time.Minute, AttemptLimit: 3, Budget: time.Hour, StealCap: 2, PolicyHash: "policy-1", TriggerSource: "webhook",
		WorkflowVersion: "7", DeliveryID: "delivery-1", Payload: []byte("payload"), RunKey: []byte("key"), Who: machine}
}

// try claims once.
func (f *fixture) try(c store.Claim) store.ClaimResult {
	f.t.Helper()
	results, err := f.ClaimRuns(f.ctx, []store.Claim{c})
	require.NoError(f.t, err)
	require.Len(f.t, results, 1)
	return results[0]
}

// claimed makes a claim that must win and gives the fence of its lease.
func (f *fixture) claimed(c store.Claim) (store.Fence, holdpoint.Run) {
	f.t.Helper()
	r := f.try(c)
	require.Equal(f.t, holdpoint.Claimed, r.Outcome)
	return store.Fence{Tenant: c.Tenant, RunID: r.Run.ID, Owner: c.Owner, Version: r.Lease.Version, ExecutionID: c.ExecutionID}, r.Run
}

// work claims a new key.
func (f *fixture) work(key string) store.Fence {
	f.t.Helper()
	fence, _ := f.claimed(newClaim(f.tenant, key))
	return fence
}

// held hands over a draft with one effect for each slot and gives its approval.
func (f *fixture) held(fence store.Fence, slots ...string) (holdpoint.Run, holdpoint.Approval) {
	f.t.Helper()
	run, approval, err := f.HoldDraft(f.ctx, f.newDraft(fence, 1, slots...))
	require.NoError(f.t, err)
	return run, approval
}

// newDraft is a draft revision with one effect for each slot, an approval and one challenge by e-mail.
func (f *fixture) newDraft(fence store.Fence, revision int, slots ...string) store.Draft {
	d := store.Draft{Fence: fence, Output: []byte("output"), SourceURL: []byte("source"), ApproveBy: 24 * time.Hour, Who: machine,
		Draft: holdpoint.Draft{Revision: revision, OutputHash: "output-hash", PolicyHash: "policy-1", Model: holdpoint.Model{Name: "m", Revision: "r1"}},
		Approval: holdpoint.Approval{ID: uuid.NewString(), Workflow: "refund", Revision: revision, Digest: fmt.Sprintf("digest-%s-%d", fence.RunID, revision),
			PolicyHash: "policy-1", Kind: "draft", Why: "gate", Roles: []string{"approver"}, Quorum: 1, Assurance: "link",
			Allowed:       []holdpoint.Decision{holdpoint.DecisionApprove, holdpoint.DecisionReject, holdpoint.DecisionSendBack},
			ExecuteWithin: holdpoint.Duration(time.Hour)},
		Data: map[string]any{"gate": "approve_before_act"}}
	d.Challenges = []holdpoint.Challenge{{ID: uuid.NewString(), Email: "jane@acme.example", Channel: "email"}}
	d.Messages = []store.Message{f.newMessage(fence.RunID)}
	for i, slot := range slots {
		d.Effects = append(d.Effects, store.PlannedEffect{Target: []byte("target"), Payload: []byte("payload"), EffectSpec: holdpoint.EffectSpec{
			ID: uuid.NewString(), RunID: fence.RunID, Workflow: "refund", Revision: revision, Order: i, Slot: slot, Type: "mail", Connector: "mailer",
			ConnectorVersion: "v1", Provider: "smtp://mail", Consequence: "customer_message", TargetIndex: "target-" + slot, PayloadHash: "payload-hash",
			ProviderKey: "pk-" + fence.RunID + slot, Reference: "ref-" + slot, After: []string{}}})
	}
	return d
}

func (f *fixture) newMessage(runID string) store.Message {
	return store.Message{Data: []byte("data"), MessageRecord: holdpoint.MessageRecord{ID: uuid.NewString(), Tenant: f.tenant, RunID: runID,
		Type: "approval.requested", Channel: "email", Email: "jane@acme.example"}}
}

// record reads everything about a run.
func (f *fixture) record(runID string) store.Record {
	f.t.Helper()
	r, err := f.Record(f.ctx, f.tenant, runID)
	require.NoError(f.t, err)
	return r
}

// kinds lists the types of a run's events and checks that their sequence has no gap.
func (f *fixture) kinds(runID string) []string {
	f.t.Helper()
	events := f.eventsOf(runID)
	kinds := make([]string, len(events))
	for i, e := range events {
		require.EqualValues(f.t, i+1, e.Seq, "run_seq has a gap")
		kinds[i] = e.Type
	}
	return kinds
}

func (f *fixture) eventsOf(runID string) []holdpoint.Event {
	f.t.Helper()
	events, err := f.Events(f.ctx, f.tenant, runID)
	require.NoError(f.t, err)
	return events
}

// count is how often a value stands in a list.
func count[T comparable](list []T, value T) (n int) {
	for _, v := range list {
		if v == value {
			n++
		}
	}
	return n
}

// requireCode fails unless err is a *holdpoint.Error with this code.
func requireCode(t *testing.T, code holdpoint.Code, err error) *holdpoint.Error {
	t.Helper()
	var e *holdpoint.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, code, e.Code, err.Error())
	return e
}
