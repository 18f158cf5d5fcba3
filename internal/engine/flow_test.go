package engine_test

import (
	"context"
	"encoding/json"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/connector/mirror"
	"github.com/holdpoint/holdpoint/internal/dispatch"
	"github.com/holdpoint/holdpoint/internal/egress"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/payload"
	"github.com/holdpoint/holdpoint/internal/store"
	"github.com/holdpoint/holdpoint/internal/store/sqlstore"
)

const ticketPolicy = `version: 1
redelivery_window: 30d
roles:
  support-lead: {users: [ana@acme.example]}
  operator: {users: [ops@acme.example]}
  switch-owner: {users: [ops@acme.example]}
  policy-owner: {users: [ops@acme.example]}
  tenant-admin: {users: [ops@acme.example]}
connectors:
  crm:
    kind: http
    method: POST
    url: "PROVIDER/notes"
    body: {text: "${effect.payload.text}", external_ref: "${effect.reference}", to: "${effect.target}"}
    idempotency: {header: Idempotency-Key, max_length: 64, lifetime: 24h}
    success: [200, 201]
    provider_id: /id
    lookup: {url: "PROVIDER/objects?ref=${effect.reference}", found: "size(response.results) == 1", absent: "size(response.results) == 0", provider_id: /results/0/id, max_lag: 1s, settle: [1s, 1s, 1s]}
    timeout: 3s
  blind:
    kind: http
    method: POST
    url: "PROVIDER/blind"
    body: {text: "${effect.payload.text}"}
    success: [200]
    timeout: 3s
workflows:
  ticket-reply:
    contract: reply.json
    repairs: 1
    initiator: /created_by
    subject: /customer/email
    lease: {initial: 5m, cap: 30m}
    effects:
      reply: {type: email.reply, connector: crm, consequence: customer_message, target: "${event.customer.email}", payload: {text: "${draft.reply}"}}
    gate: {pattern: approve_before_act, roles: [support-lead], approve_by: 24h, execute_by: 48h}
  order:
    contract: reply.json
    lease: {initial: 5m, cap: 30m}
    effects:
      book: {type: order.book, connector: blind, consequence: customer_message, target: "${event.customer.email}", payload: {text: "${draft.reply}"}}
    gate: {pattern: approve_before_act, roles: [support-lead], approve_by: 24h, execute_by: 48h}
`

const replySchema = `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","required":["reply"],"additionalProperties":false,"properties":{"reply":{"type":"string","maxLength":500}}}`

// world is an engine over SQLite with one tenant, a mirror provider and the loops running.
type world struct {
	*testing.T
	ctx      context.Context
	e        *engine.Engine
	store    *sqlstore.Store
	provider *mirror.Provider
	machine  holdpoint.Actor
	ana, ops holdpoint.Actor
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOver(t, func(s store.Store) store.Store { return s })
}

// newWorldOver is newWorld with something between engine and store.
func newWorldOver(t *testing.T, between func(store.Store) store.Store) *world {
	t.Helper()
	w := &world{T: t, ctx: t.Context()}
	var err error
	w.provider, err = mirror.Start("127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.provider.Close()) })
	w.store, err = sqlstore.Open(w.ctx, sqlstore.Options{DSN: "sqlite:" + filepath.Join(t.TempDir(), "hp.db")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.store.Close()) })
	require.NoError(t, w.store.Migrate(w.ctx))
	master, err := payload.NewMaster([]byte(strings.Repeat("k", 32)))
	require.NoError(t, err)
	w.e, err = engine.New(engine.Options{Store: between(w.store), Master: master, PublicURL: "http://127.0.0.1:8470", ActionsEnabled: true})
	require.NoError(t, err)
	local := engine.Local("default", "test")
	require.NoError(t, w.e.CreateTenant(w.ctx, local, "default"))
	for _, email := range []string{"ana@acme.example", "ops@acme.example"} {
		_, err := w.e.AddPerson(w.ctx, local, email, "correct horse battery")
		require.NoError(t, err)
	}
	w.activate(w.policy())
	key, err := w.e.CreateKey(w.ctx, local, "n8n", []holdpoint.Scope{holdpoint.ScopeWork, holdpoint.ScopeRead})
	require.NoError(t, err)
	w.machine, err = w.e.Bearer(w.ctx, key.Key)
	require.NoError(t, err)
	w.ana, w.ops = w.login("ana@acme.example"), w.login("ops@acme.example")
	d := dispatch.New(dispatch.Options{Engine: w.e, Secrets: secrets{}, Guard: &egress.Guard{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, Wake: w.store.Wake(), Poll: 50 * time.Millisecond})
	d.Start()
	t.Cleanup(func() { require.NoError(t, d.Stop(context.Background())) })
	return w
}

// secrets holds the same secret under every name.
type secrets struct{}

func (secrets) Env(string) (string, bool)   { return strings.Repeat("s", 32), true }
func (secrets) File(string) ([]byte, error) { return []byte(strings.Repeat("s", 32)), nil }

func (w *world) login(email string) holdpoint.Actor {
	w.Helper()
	token, _, err := w.e.Login(w.ctx, "default", email, "correct horse battery", "127.0.0.1")
	require.NoError(w, err)
	a, _, err := w.e.Session(w.ctx, token)
	require.NoError(w, err)
	return a
}

func (w *world) switchOn() {
	w.Helper()
	on := true
	for _, scope := range []string{"global", "tenant"} {
		_, err := w.e.SetSwitch(w.ctx, w.ops, scope, engine.SwitchRequest{On: &on, Reason: "start"})
		require.NoError(w, err)
	}
}

// event is the payload of every claim.
const event = `{"customer":{"email":"jane@acme.example"},"created_by":"bob@acme.example"}`

// policy is the document that newWorld activates.
func (w *world) policy() string {
	return strings.ReplaceAll(ticketPolicy, "PROVIDER", w.provider.URL())
}

// activate makes document the active policy.
func (w *world) activate(document string) {
	w.Helper()
	local := engine.Local("default", "test")
	stored, err := w.e.PutPolicy(w.ctx, local, engine.PolicyProposal{Document: document, Files: map[string]string{"reply.json": replySchema}})
	require.NoError(w, err, "%+v", err)
	active, err := w.e.PolicyHash(w.ctx, "default")
	require.NoError(w, err)
	require.NoError(w, w.e.ActivatePolicy(w.ctx, local, stored.Hash, active))
}

func (w *world) claim(workflow, key string) engine.ClaimAnswer {
	w.Helper()
	a, err := w.e.Claim(w.ctx, w.machine, engine.ClaimRequest{Workflow: workflow, Key: key, Payload: json.RawMessage(event)})
	require.NoError(w, err)
	return a
}

func (w *world) draft(c engine.ClaimAnswer, output string) engine.DraftAnswer {
	w.Helper()
	d, err := w.e.SubmitDraft(w.ctx, w.machine, c.Run.ID, engine.DraftRequest{Work: engine.Work{Owner: c.Lease.Owner, Version: c.Lease.Version}, Output: json.RawMessage(output)})
	require.NoError(w, err)
	return d
}

func (w *world) approve(d engine.DraftAnswer) engine.DecisionAnswer {
	w.Helper()
	a, err := w.e.Decide(w.ctx, w.ana, d.Approval.ID, engine.DecisionRequest{Decision: holdpoint.DecisionApprove, Digest: d.Approval.Digest})
	require.NoError(w, err)
	return a
}

// until waits for a run to satisfy ok.
func (w *world) until(runID, what string, ok func(engine.RunView) bool) engine.RunView {
	w.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		v, err := w.e.Run(w.ctx, w.ops, runID)
		require.NoError(w, err)
		if ok(v) {
			return v
		}
		require.False(w, time.Now().After(end), "%s did not come about; the run is %s %s", what, v.State, v.Reason)
	}
}

func TestGovernedPath(t *testing.T) {
	w := newWorld(t)
	c := w.claim("ticket-reply", "ticket-1")
	require.Equal(t, holdpoint.Claimed, c.Outcome)
	require.Equal(t, holdpoint.Busy, w.claim("ticket-reply", "ticket-1").Outcome)

	d := w.draft(c, `{"reply":1}`)
	require.Equal(t, "repair", d.Outcome)
	require.Equal(t, "/reply", d.Errors[0].Pointer)
	d = w.draft(c, `{"reply":"Hello Jane"}`)
	require.Equal(t, "held", d.Outcome)
	again := w.draft(c, `{"reply":"Hello Jane"}`)
	require.Equal(t, d.Approval.ID, again.Approval.ID, "an identical repetition answers what stands")

	card, err := w.e.Approval(w.ctx, w.ana, d.Approval.ID, "en")
	require.NoError(t, err)
	require.Equal(t, "Send 1 e-mail to jane@acme.example", card.Sentence)
	require.True(t, card.MayDecide)
	require.Equal(t, []string{"type /reply"}, card.Faults)
	require.Equal(t, []string{"ana@acme.example"}, card.Eligible)

	_, err = w.e.Decide(w.ctx, w.machine, d.Approval.ID, engine.DecisionRequest{Decision: holdpoint.DecisionApprove, Digest: d.Approval.Digest})
	require.Error(t, err, "a machine never decides")
	w.approve(d)
	v := w.until(c.Run.ID, "approved", func(v engine.RunView) bool { return v.State == holdpoint.RunApproved })
	require.Equal(t, holdpoint.HoldSwitch, v.Effects[0].Hold)
	require.Empty(t, w.provider.Writes(), "the switch is off")

	w.switchOn()
	v = w.until(c.Run.ID, "completed", func(v engine.RunView) bool { return v.State == holdpoint.RunCompleted })
	require.Len(t, w.provider.Writes(), 1)
	require.Equal(t, "yes", v.Answers.Sent)
	require.Equal(t, "ana@acme.example", v.Answers.ApprovedBy)
	require.NotEmpty(t, v.Effects[0].ProviderID)
	require.Equal(t, holdpoint.Duplicate, w.claim("ticket-reply", "ticket-1").Outcome)

	events, err := w.e.Evidence(w.ctx, w.machine, c.Run.ID)
	require.NoError(t, err)
	for i, ev := range events {
		require.EqualValues(t, i+1, ev.Seq)
	}
}

func TestAcceptThenStallEndsUnknownAndIsNeverRepeated(t *testing.T) {
	w := newWorld(t)
	w.switchOn()
	w.provider.Queue("/blind", mirror.AcceptThenStall(time.Minute))
	c := w.claim("order", "order-1")
	w.approve(w.draft(c, `{"reply":"booked"}`))
	v := w.until(c.Run.ID, "unknown", func(v engine.RunView) bool {
		return len(v.Effects) == 1 && v.Effects[0].State == holdpoint.EffectUnknown
	})
	require.True(t, v.Effects[0].PossiblyCommitted)
	require.Equal(t, holdpoint.RunApproved, v.State)
	require.Equal(t, "unknown", v.Answers.Sent)
	_, err := w.e.Resolve(w.ctx, w.ana, v.Effects[0].ID, engine.Resolution{Verdict: holdpoint.VerdictSent, Reason: "seen"})
	require.Error(t, err, "only an operator resolves")
	_, err = w.e.Resolve(w.ctx, w.ops, v.Effects[0].ID, engine.Resolution{Verdict: holdpoint.VerdictSent, ProviderID: "p1", Reason: "seen at the provider"})
	require.NoError(t, err)
	w.until(c.Run.ID, "completed", func(v engine.RunView) bool { return v.State == holdpoint.RunCompleted })
	require.Equal(t, 1, w.provider.CountPath("/blind"))
}

func TestAcceptThenStallIsFoundByLookUp(t *testing.T) {
	w := newWorld(t)
	w.switchOn()
	w.provider.Queue("/notes", mirror.AcceptThenStall(time.Minute))
	c := w.claim("ticket-reply", "ticket-2")
	w.approve(w.draft(c, `{"reply":"Hello"}`))
	v := w.until(c.Run.ID, "completed", func(v engine.RunView) bool { return v.State == holdpoint.RunCompleted })
	require.Equal(t, 1, w.provider.CountPath("/notes"))
	require.NotEmpty(t, v.Effects[0].ProviderID)
	require.Positive(t, v.Effects[0].Lookups)
}

// flips turns a tenant off between the lease of an effect and the begin of its first attempt.
type flips struct {
	store.Store
	once sync.Once
}

func (f *flips) BeginAttempts(ctx context.Context, owner string, list []store.AttemptBegin) ([]store.BegunAttempt, error) {
	var err error
	f.once.Do(func() {
		_, _, err = f.SetSwitch(ctx, store.SwitchChange{Tenant: "default", Scope: "tenant", Who: holdpoint.Who{Kind: "local", ID: "test"}})
	})
	if err != nil {
		return nil, err
	}
	return f.Store.BeginAttempts(ctx, owner, list)
}

// What the store does not begin is not sent (I2).
func TestSwitchedOffBeforeTheAttemptSendsNothing(t *testing.T) {
	w := newWorldOver(t, func(s store.Store) store.Store { return &flips{Store: s} })
	w.switchOn()
	c := w.claim("ticket-reply", "ticket-flip")
	w.approve(w.draft(c, `{"reply":"Hello"}`))
	w.until(c.Run.ID, "given back", func(v engine.RunView) bool {
		events, err := w.e.Evidence(w.ctx, w.machine, v.ID)
		require.NoError(w, err)
		return slices.ContainsFunc(events, func(e holdpoint.Event) bool { return e.Type == "effect.released" })
	})
	w.switchOn()
	w.until(c.Run.ID, "completed", func(v engine.RunView) bool { return v.State == holdpoint.RunCompleted })
	require.Equal(t, 1, w.provider.CountPath("/notes"))
	rec, err := w.store.Record(w.ctx, "default", c.Run.ID)
	require.NoError(t, err)
	require.Len(t, rec.Attempts, 1)
}
