package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/httpserver"
	"github.com/holdpoint/holdpoint/internal/payload"
	"github.com/holdpoint/holdpoint/internal/store/sqlstore"
)

const ticketPolicy = `version: 1
tenant: TENANT
redelivery_window: 30d
roles:
  support-lead: {users: [ana@acme.example, ben@acme.example]}
  operator: {users: [ops@acme.example]}
  auditor: {users: [ops@acme.example]}
  switch-owner: {users: [ops@acme.example]}
  policy-owner: {users: [ops@acme.example]}
  tenant-admin: {users: [ops@acme.example]}
connectors:
  crm:
    kind: http
    url: "http://127.0.0.1:1/notes"
    body: {text: "${effect.payload.text}"}
    lookup: {url: "http://127.0.0.1:1/objects?ref=${effect.reference}", found: "size(response.results) == 1", absent: "size(response.results) == 0", max_lag: 1s, settle: [1h]}
  blind: {kind: http, url: "http://127.0.0.1:1/blind", body: {text: "${effect.payload.text}"}}
workflows:
  ticket-reply:
    contract: reply.json
    repairs: 1
    initiator: /created_by
    subject: /customer/email
    effects:
      reply: {type: email.reply, connector: crm, consequence: customer_message, target: "${event.customer.email}", payload: {text: "${draft.reply}"}}
    gate: {pattern: approve_before_act, roles: [support-lead], approve_by: 24h, execute_by: 48h}
    retry: {run: {attempts: 2, budget: 2h}, effect: {attempts: 2, budget: 6h}}
  order:
    contract: reply.json
    effects:
      book: {type: order.book, connector: blind, consequence: customer_message, target: "${event.customer.email}", payload: {text: "${draft.reply}"}}
    gate: {pattern: approve_before_act, roles: [support-lead], approve_by: 24h, execute_by: 48h}
`

const replySchema = `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","required":["reply"],"additionalProperties":false,"properties":{"reply":{"type":"string","maxLength":500}}}`

// event is the payload of a delivery; s3cret marks content that must show nowhere but in content.
const event = `{"customer":{"email":"jane@acme.example"},"created_by":"bob@acme.example","text":"s3cret"}`

// world serves the API over SQLite to one machine and three people, and holds every exchange to the document.
type world struct {
	testing.TB
	engine   *engine.Engine
	store    *sqlstore.Store
	file     string // the store's
	url      string
	contract *contract
	machine  *client.Client // work, read
	reader   *client.Client // read
	ana, ops *client.Client // approver; operator, auditor, switch-owner, policy-owner and tenant-admin
	tokens   map[string]string

	ahead    atomic.Int64 // how far the store's clock is ahead of ours
	checking sync.Mutex
	mu       sync.Mutex
	log      bytes.Buffer
}

const policyTenant = "default"

func newWorld(t testing.TB, o Options) *world {
	t.Helper()
	ctx := t.Context()
	w := &world{TB: t, contract: newContract(t), tokens: map[string]string{}}
	w.file = filepath.Join(t.TempDir(), "hp.db")
	st, err := sqlstore.Open(ctx, sqlstore.Options{DSN: "sqlite:" + w.file,
		Now: func() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) }})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	require.NoError(t, st.Migrate(ctx))
	w.store = st
	w.engine = w.newEngine()
	w.tenant(policyTenant)
	o.Log = slog.New(slog.NewJSONHandler(w, nil))
	w.url = w.serve(w.engine, o)
	w.machine, w.reader = w.client("machine"), w.client("reader")
	w.ana, w.ops = w.client("ana"), w.client("ops")
	return w
}

// newEngine makes an engine of the world's store; nothing of it is in memory yet.
func (w *world) newEngine() *engine.Engine {
	w.Helper()
	master, err := payload.NewMaster([]byte(strings.Repeat("k", 32)))
	require.NoError(w, err)
	e, err := engine.New(engine.Options{Store: w.store, Master: master, PublicURL: "http://127.0.0.1:8470", ActionsEnabled: true})
	require.NoError(w, err)
	return e
}

// restart serves the same store by a fresh engine.
func (w *world) restart() { w.engine = w.newEngine(); w.url = w.serve(w.engine, Options{}) }

// serve serves the API of an engine, held to the document, and gives its address.
func (w *world) serve(e *engine.Engine, o Options) string {
	s := httptest.NewServer(w.recorded(New(e, o).(*server), httpserver.Options{Log: o.Log}))
	w.Cleanup(s.Close)
	return s.URL
}

// Write takes the log.
func (w *world) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(b)
}

func (w *world) logged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

func (w *world) client(who string) *client.Client { return client.New(w.url, w.tokens[who]) }

// tenant makes a tenant with its policy, people and tokens; the tokens of tenants but the first have its name in front.
func (w *world) tenant(name string) {
	w.Helper()
	ctx := w.Context()
	local := engine.Local(name, "test")
	require.NoError(w, w.engine.CreateTenant(ctx, local, name))
	prefix := name + "/"
	if name == policyTenant {
		prefix = ""
	}
	for who, scopes := range map[string][]holdpoint.Scope{
		"ana": {holdpoint.ScopeRead, holdpoint.ScopeDecide}, "ben": {holdpoint.ScopeDecide}, "ops": holdpoint.PersonScopes,
	} {
		email := who + "@acme.example"
		w.personOf(name, email)
		k, err := w.engine.CreateToken(ctx, local, email, "test", scopes)
		require.NoError(w, err)
		w.tokens[prefix+who] = k.Key
	}
	for who, scopes := range map[string][]holdpoint.Scope{
		"machine": {holdpoint.ScopeWork, holdpoint.ScopeRead}, "reader": {holdpoint.ScopeRead}, "content": {holdpoint.ScopeContent},
	} {
		k, err := w.engine.CreateKey(ctx, local, who, scopes)
		require.NoError(w, err)
		w.tokens[prefix+who] = k.Key
	}
	p, err := w.engine.PutPolicy(ctx, local, engine.PolicyProposal{Document: strings.ReplaceAll(ticketPolicy, "TENANT", name), Files: map[string]string{"reply.json": replySchema}})
	require.NoError(w, err, "%+v", err)
	require.NoError(w, w.engine.ActivatePolicy(ctx, local, p.Hash, ""))
}

// person makes an account of the first tenant.
func (w *world) person(email string) { w.personOf(policyTenant, email) }

// personOf makes an account without a password: hashing one takes longer than all the rest of a test.
func (w *world) personOf(tenant, email string) {
	w.Helper()
	x := holdpoint.Person{ID: uuid.NewString(), Tenant: tenant, Email: email}
	require.NoError(w, w.store.CreatePerson(w.Context(), x, holdpoint.Who{Kind: holdpoint.ActorLocal, ID: "test"}))
}

// recorded holds what passes to the document, as the caller sends and gets it.
func (w *world) recorded(s *server, o httpserver.Options) http.Handler {
	wrapped := httpserver.Wrap(s, o)
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.Error(err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		_, pattern := s.mux.Handler(r)
		rec := httptest.NewRecorder()
		wrapped.ServeHTTP(rec, r)
		if pattern != "" && r.Method != http.MethodHead {
			w.check(pattern, r, body, rec)
		}
		for name, values := range rec.Header() {
			out.Header()[name] = values
		}
		out.WriteHeader(rec.Code)
		_, _ = out.Write(rec.Body.Bytes())
	})
}

// check holds one exchange to the document and to package client.
func (w *world) check(pattern string, r *http.Request, body []byte, rec *httptest.ResponseRecorder) {
	w.checking.Lock()
	defer w.checking.Unlock()
	shown := rec.Body.Bytes()[:min(rec.Body.Len(), 300)]
	if err := w.contract.answer(w, pattern, rec.Code, rec.Header(), rec.Body.Bytes()); err != nil {
		w.Errorf("%s answers %d %s: %v", pattern, rec.Code, shown, err)
	}
	if rec.Code < 300 && !bytes.Contains(rec.Body.Bytes(), []byte(`"problem":`)) {
		if err := w.contract.request(w, pattern, r, body); err != nil {
			w.Errorf("%s accepts ?%s %s: %v", pattern, r.URL.RawQuery, body, err)
		}
		w.known(pattern, rec.Code, rec.Body.Bytes())
	}
}

// clientTypes are the types that package client reads whole answers into.
var clientTypes = map[string]any{
	"POST /v1/claims": client.Claim{}, "POST /v1/runs/{id}/claim": client.Claim{}, "GET /v1/runs/{id}": client.Run{}, "GET /v1/runs": client.RunPage{},
	"POST /v1/runs/{id}/steps/{name}/begin": client.StepAnswer{}, "POST /v1/runs/{id}/draft": client.Draft{}, "POST /v1/runs/{id}/replace": client.Replacement{},
	"GET /v1/approvals": client.ApprovalPage{}, "GET /v1/approvals/{id}": client.Card{}, "POST /v1/approvals/{id}/decisions": client.Decided{},
	"POST /v1/approvals/{id}/withdraw": client.Withdrawal{}, "GET /v1/effects": client.EffectPage{}, "GET /v1/effects/{id}": client.Effect{},
	"GET /v1/switches": client.Switches{}, "PUT /v1/switches/{scope}": client.Flipped{}, "POST /v1/policies": client.StoredPolicy{},
	"GET /v1/policies/{hash}": client.Policy{}, "POST /v1/users": client.NewUser{}, "POST /v1/keys": client.NewKey{}, "POST /v1/me/tokens": client.NewKey{}, "GET /v1/me": client.Me{},
	"GET /v1/users": struct{ Users []client.User }{}, "GET /v1/keys": struct{ Keys []holdpoint.Key }{}, "GET /v1/connectors": struct{ Connectors []client.Connector }{},
	"GET /v1/policies": struct{ Policies []client.Policy }{}, "GET /v1/runs/{id}/evidence": struct{ Events []holdpoint.Event }{}, "GET /v1/evidence": struct{ Events []holdpoint.Event }{},
}

// known holds package client to the answers: it has a field for every member.
func (w *world) known(pattern string, status int, body []byte) {
	zero, ok := clientTypes[pattern]
	if !ok {
		return
	}
	v := newOf(zero)
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		w.Errorf("package client does not know all of %s %d: %v", pattern, status, err)
	}
}

// reply is one answer to a raw request.
type reply struct {
	*http.Response
	text string
	json map[string]any
}

// do makes a raw request as one of the world's callers ("" for nobody).
func (w *world) do(who, method, path, body string, headers ...string) reply {
	w.Helper()
	r, err := http.NewRequestWithContext(w.Context(), method, w.url+path, strings.NewReader(body))
	require.NoError(w, err)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if who != "" {
		require.Contains(w, w.tokens, who)
		r.Header.Set("Authorization", "Bearer "+w.tokens[who])
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return w.send(r)
}

// send makes a prepared request.
func (w *world) send(r *http.Request) reply {
	w.Helper()
	resp, err := http.DefaultTransport.RoundTrip(r)
	require.NoError(w, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(w, err)
	out := reply{Response: resp, text: string(text)}
	if len(text) > 0 {
		require.NoError(w, json.Unmarshal(text, &out.json), "%s", text)
	}
	return out
}

// refused holds a problem document to its shape.
func (w *world) refused(r reply, code holdpoint.Code) {
	w.Helper()
	require.Equal(w, string(code), r.json["code"], r.text)
	require.Equal(w, httpserver.Status(code), r.StatusCode)
	require.Equal(w, "application/problem+json", r.Header.Get("Content-Type"))
	require.Equal(w, float64(r.StatusCode), r.json["status"])
	require.Equal(w, r.Header.Get("X-Request-Id"), r.json["request_id"])
	require.NotEmpty(w, r.json["detail"])
	require.Equal(w, "no-store", r.Header.Get("Cache-Control"))
	require.NotContains(w, r.text, "s3cret")
}

func claimBody(workflow, key string) string {
	return fmt.Sprintf(`{"workflow":%q,"key":%q,"payload":%s}`, workflow, key, event)
}

// claimed claims a new event and gives its run and lease.
func (w *world) claimed(workflow, key string) (client.Claim, client.Work) {
	w.Helper()
	a, err := w.machine.Claim(w.Context(), client.ClaimRequest{Workflow: workflow, Key: key, Payload: json.RawMessage(event)})
	require.NoError(w, err)
	require.Equal(w, holdpoint.Claimed, a.Outcome)
	return a, client.Work{Owner: a.Lease.Owner, Version: a.Lease.Version}
}

// held takes a new event as far as the question to people.
func (w *world) held(workflow, key string) client.Draft {
	w.Helper()
	a, work := w.claimed(workflow, key)
	d, err := w.machine.SubmitDraft(w.Context(), a.Run.ID, client.DraftRequest{Work: work, Output: json.RawMessage(`{"reply":"s3cret reply"}`), Model: holdpoint.Model{Name: "m"}})
	require.NoError(w, err)
	require.Equal(w, "held", d.Outcome)
	return d
}

// approved takes a new event as far as its released effect.
func (w *world) approved(workflow, key string) client.Decided {
	w.Helper()
	d := w.held(workflow, key)
	out, err := w.ana.Decide(w.Context(), d.Approval.ID, client.DecisionRequest{Decision: holdpoint.DecisionApprove, Digest: d.Approval.Digest})
	require.NoError(w, err)
	require.Len(w, out.Effects, 1)
	return out
}

// unknown takes a new event as far as an effect whose end nobody knows.
func (w *world) unknown(workflow, key string) holdpoint.Effect {
	w.Helper()
	w.switchOn()
	x := w.approved(workflow, key).Effects[0]
	ctx := w.Context()
	tasks, err := w.engine.LeaseEffects(ctx, "d", time.Minute, 10, nil)
	require.NoError(w, err)
	i := slices.IndexFunc(tasks, func(task engine.Task) bool { return task.ID == x.ID })
	require.GreaterOrEqual(w, i, 0)
	begun, may, err := w.engine.Begin(ctx, "d", &tasks[i], "wire", time.Minute)
	require.NoError(w, err)
	require.True(w, may)
	_, err = w.engine.Settle(ctx, "d", &tasks[i], begun, holdpoint.Outcome{Result: holdpoint.Unclear, Phase: holdpoint.PhaseWritten, Class: holdpoint.ClassAmbiguous})
	require.NoError(w, err)
	return x
}

func (w *world) switchOn() {
	w.Helper()
	for _, scope := range []string{"global", "tenant"} {
		_, err := w.ops.SetSwitch(w.Context(), scope, true, "start")
		require.NoError(w, err)
	}
}

// says holds an error to its code.
func (w *world) says(err error, code holdpoint.Code) {
	w.Helper()
	require.ErrorIs(w, err, &holdpoint.Error{Code: code})
}
