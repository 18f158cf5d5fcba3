package linear

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// The tenants of a history: one whose effects stay where they are, and one whose effects are sent.
const (
	runsTenant    = "history-runs"
	effectsTenant = "history-effects"
)

// machine is the actor of everything in a history.
var machine = holdpoint.Who{Kind: "machine", ID: "key-1", How: "key"}

// newClaim is a claim of a key that no limit ends within a history.
func newClaim(tenant, key string) store.Claim {
	return store.Claim{RunID: newID(), Tenant: tenant, Scope: "refund", Workflow: "refund", Key: key, KeyHMAC: "hmac-" + key, Fingerprint: "fp-" + key,
		FingerprintRule: "rule", Owner: newID(), ExecutionID: "exec-1", Lease: time.Hour, Cap: 2 * time.Hour, AttemptLimit: 1000, Budget: 24 * time.Hour,
		StealCap: 1000, PolicyHash: "policy-1", Payload: []byte("payload"), RunKey: []byte("key"), Who: machine}
}

// newDraft is a draft revision with one effect, whose approval anybody can name.
func newDraft(fence store.Fence, revision int) store.Draft {
	return store.Draft{Fence: fence, Output: []byte("output"), ApproveBy: 24 * time.Hour, Who: machine,
		Draft: holdpoint.Draft{Revision: revision, OutputHash: "output-hash", PolicyHash: "policy-1"},
		Approval: holdpoint.Approval{ID: approvalOf(fence.RunID, revision), Workflow: "refund", Revision: revision, Digest: digestOf(fence.RunID, revision),
			PolicyHash: "policy-1", Kind: "draft", Why: "gate", Quorum: 1, Assurance: "link", ExecuteWithin: holdpoint.Duration(24 * time.Hour),
			Allowed: []holdpoint.Decision{holdpoint.DecisionApprove, holdpoint.DecisionReject, holdpoint.DecisionSendBack}},
		Effects: []store.PlannedEffect{{Target: []byte("target"), Payload: []byte("payload"), EffectSpec: holdpoint.EffectSpec{ID: newID(), RunID: fence.RunID,
			Workflow: "refund", Revision: revision, Slot: "mail", Type: "mail", Connector: "mailer", ConnectorVersion: "v1", Provider: "smtp://mail",
			Consequence: "customer_message", TargetIndex: "target", PayloadHash: "payload-hash", ProviderKey: "pk-" + fence.RunID, Reference: "ref"}}}}
}

func approvalOf(run string, revision int) string { return fmt.Sprintf("%s-approval-%d", run, revision) }

func digestOf(run string, revision int) string { return fmt.Sprintf("%s-digest-%d", run, revision) }

// newDecision is one person's word about a revision.
func newDecision(tenant, run string, revision int, person string, said holdpoint.Decision) store.Decision {
	return store.Decision{Tenant: tenant, ID: newID(), ApprovalID: approvalOf(run, revision), Digest: digestOf(run, revision), Decision: said,
		Person: holdpoint.Person{ID: person, Tenant: tenant, Email: person + "@acme.example"}, Assurance: "login", How: "session", Budget: 24 * time.Hour, Who: machine}
}

// prepare makes the tenants and gives released effects, one for each run.
func prepare(t *testing.T, s store.Store, effects int) (ids []string) {
	t.Helper()
	ctx := t.Context()
	for _, name := range []string{runsTenant, effectsTenant} {
		require.NoError(t, s.CreateTenant(ctx, store.Tenant{Name: name, EffectKey: []byte("effect"), IndexKey: []byte("index")}, machine))
	}
	for _, scope := range []string{"global", "tenant"} {
		_, _, err := s.SetSwitch(ctx, store.SwitchChange{Tenant: effectsTenant, Scope: scope, On: true, Who: machine})
		require.NoError(t, err)
	}
	for range effects {
		c := newClaim(effectsTenant, newID())
		all, err := s.ClaimRuns(ctx, []store.Claim{c})
		require.NoError(t, err)
		fence := store.Fence{Tenant: effectsTenant, RunID: c.RunID, Owner: c.Owner, Version: all[0].Lease.Version, ExecutionID: c.ExecutionID}
		_, _, err = s.HoldDraft(ctx, newDraft(fence, 1))
		require.NoError(t, err)
		r, err := s.Decide(ctx, newDecision(effectsTenant, c.RunID, 1, "jane", holdpoint.DecisionApprove))
		require.NoError(t, err)
		ids = append(ids, r.Effects[0].ID)
	}
	return ids
}
