package faultstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/connector/mirror"
	"github.com/holdpoint/holdpoint/internal/api"
	"github.com/holdpoint/holdpoint/internal/console"
	"github.com/holdpoint/holdpoint/internal/dispatch"
	"github.com/holdpoint/holdpoint/internal/egress"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/httpserver"
	"github.com/holdpoint/holdpoint/internal/payload"
	"github.com/holdpoint/holdpoint/internal/store"
	"github.com/holdpoint/holdpoint/internal/store/faultstore"
	"github.com/holdpoint/holdpoint/internal/store/sqlstore"
)

const pathPolicy = `version: 1
redelivery_window: 30d
roles:
  lead: {users: [ana@acme.example]}
  operator: {users: [ops@acme.example]}
  auditor: {users: [ops@acme.example]}
  switch-owner: {users: [ops@acme.example]}
  policy-owner: {users: [ops@acme.example]}
  tenant-admin: {users: [ops@acme.example]}
connectors:
  crm:
    kind: http
    method: POST
    url: "PROVIDER/notes"
    body: {text: "${effect.payload.text}", external_ref: "${effect.reference}", to: "${effect.target}"}
    success: [200, 201]
    provider_id: /id
    lookup: {url: "PROVIDER/objects?ref=${effect.reference}", found: "size(response.results) == 1", absent: "size(response.results) == 0", provider_id: /results/0/id, max_lag: 1s, settle: [1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s]}
    timeout: 3s
channels:
  inbox: {kind: webhook, url: "PROVIDER/inbox", secret: "${env:HOOK}", personal: true}
  team: {kind: webhook, url: "PROVIDER/team", secret: "${env:HOOK}"}
workflows:
  reply:
    contract: reply.json
    repairs: 1
    lease: {initial: auto, cap: 30m}
    effects:
      reply: {type: email.reply, connector: crm, consequence: customer_message, target: "${event.to}", payload: {text: "${draft.reply}"}}
    gate: {roles: [lead], approve_by: 24h, execute_by: 48h}
  memo:
    contract: reply.json
    effects:
      memo: {type: crm.memo, connector: crm, consequence: internal_note, target: "${event.to}", payload: {text: "${draft.reply}"}}
    gate: {roles: [lead], assurance: link, approve_by: 24h, execute_by: 48h, notify: [inbox]}
  short:
    contract: reply.json
    expired_keep: 1h
    alerts: [team]
    effects:
      reply: {type: email.short, connector: crm, consequence: customer_message, target: "${event.to}", payload: {text: "${draft.reply}"}}
    gate: {roles: [lead], approve_by: 24h, execute_by: 48h, notify: [team]}
`

const pathContract = `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","required":["reply"],"additionalProperties":false,"properties":{"reply":{"type":"string"}}}`

const (
	tenant   = engine.DefaultTenant
	password = "correct horse battery"
	patience = 60 * time.Second // what a condition may take on a machine that is busy with other tests
)

// secrets are those of the policy.
type secrets map[string]string

func (s secrets) Env(name string) (string, bool) { v, ok := s[name]; return v, ok }
func (s secrets) File(string) ([]byte, error)    { return nil, errors.New("no files here") }

// made is a database with a tenant, people and their tokens, made once and copied for each world.
var made struct {
	once   sync.Once
	file   []byte
	tokens map[string]string
	err    error
}

func master(t *testing.T) *payload.Master {
	t.Helper()
	m, err := payload.NewMaster([]byte(strings.Repeat("k", 32)))
	require.NoError(t, err)
	return m
}

func makeDatabase(t *testing.T) {
	t.Helper()
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "made.db")
	s, err := sqlstore.Open(ctx, sqlstore.Options{DSN: "sqlite:" + path})
	require.NoError(t, err)
	require.NoError(t, s.Migrate(ctx))
	e, err := engine.New(engine.Options{Store: s, Master: master(t), PublicURL: "http://127.0.0.1:8470"})
	require.NoError(t, err)
	local := engine.Local(tenant, "test")
	require.NoError(t, e.CreateTenant(ctx, local, tenant))
	tokens := map[string]string{}
	for who, scopes := range map[string][]holdpoint.Scope{"ana": {holdpoint.ScopeRead, holdpoint.ScopeContent, holdpoint.ScopeDecide}, "ops": holdpoint.PersonScopes} {
		_, err := e.AddPerson(ctx, local, who+"@acme.example", password)
		require.NoError(t, err)
		k, err := e.CreateToken(ctx, local, who+"@acme.example", "test", scopes)
		require.NoError(t, err)
		tokens[who] = k.Key
	}
	k, err := e.CreateKey(ctx, local, "worker", []holdpoint.Scope{holdpoint.ScopeWork, holdpoint.ScopeRead})
	require.NoError(t, err)
	tokens["machine"] = k.Key
	require.NoError(t, s.Close())
	made.file, made.err = os.ReadFile(path)
	made.tokens = tokens
}

// world is one process of Holdpoint, console and dispatcher included, on a store of its own with faults in between.
type world struct {
	*testing.T
	faults            *faultstore.Store
	store             *sqlstore.Store // below the faults
	engine            *engine.Engine
	provider          *mirror.Provider
	url               string
	machine, ana, ops *client.Client
	dispatcher        *dispatch.Dispatcher
	dispatching       bool
	ahead             atomic.Int64 // how far the database's clock is ahead of ours
	unanswered        int          // calls that were answered unavailable
}

// newWorld starts a process without its dispatcher. Nothing is cached in it: prepare works beside it on the same store.
func newWorld(t *testing.T, prepare func(*world)) *world {
	t.Helper()
	made.once.Do(func() { makeDatabase(t) })
	require.NoError(t, made.err)
	w := &world{T: t}
	path := filepath.Join(t.TempDir(), "hp.db")
	require.NoError(t, os.WriteFile(path, made.file, 0o600))
	var err error
	w.provider, err = mirror.Start("127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.provider.Close()) })
	w.store, err = sqlstore.Open(t.Context(), sqlstore.Options{DSN: "sqlite:" + path, Now: func() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) }})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.store.Close()) })

	w.serve(w.store)
	w.activate(pathPolicy)
	w.switchOn(true)
	if prepare != nil {
		prepare(w)
	}
	w.faults = faultstore.New(w.store)
	w.serve(w.faults)
	return w
}

// serve starts a process over a store.
func (w *world) serve(s store.Store) {
	w.Helper()
	var err error
	w.engine, err = engine.New(engine.Options{Store: s, Master: master(w.T), Secrets: secrets{"HOOK": strings.Repeat("s", 32)}, PublicURL: "http://127.0.0.1:8470", ActionsEnabled: true})
	require.NoError(w, err)
	machine := api.New(w.engine, api.Options{})
	people := sync.OnceValue(func() http.Handler { // its pages take long to parse, and few scenarios look at them
		return console.New(w.engine, console.Options{NonceKey: []byte(strings.Repeat("n", 32))})
	})
	server := httptest.NewServer(httpserver.Wrap(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/") || r.URL.Path == "/readyz" {
			machine.ServeHTTP(out, r)
			return
		}
		people().ServeHTTP(out, r)
	}), httpserver.Options{}))
	w.Cleanup(server.Close)
	w.url = server.URL
	w.machine, w.ana, w.ops = client.New(w.url, made.tokens["machine"]), client.New(w.url, made.tokens["ana"]), client.New(w.url, made.tokens["ops"])
	d := dispatch.New(dispatch.Options{Engine: w.engine, Secrets: secrets{"HOOK": strings.Repeat("s", 32)},
		Guard: &egress.Guard{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, Wake: s.Wake(), Poll: 100 * time.Millisecond})
	w.dispatcher = d
}

// dispatch starts the loops; they end with the test.
func (w *world) dispatch() {
	w.Helper()
	w.dispatcher.Start()
	w.dispatching = true
	w.Cleanup(func() { require.NoError(w, w.dispatcher.Stop(context.Background())) })
}

// pass lets time pass for the database.
func (w *world) pass(d time.Duration) { w.ahead.Add(int64(d)) }

// activate puts a policy in force.
func (w *world) activate(document string) {
	w.Helper()
	local := engine.Local(tenant, "test")
	stored, err := w.engine.PutPolicy(w.Context(), local, engine.PolicyProposal{Document: strings.ReplaceAll(document, "PROVIDER", w.provider.URL()), Files: map[string]string{"reply.json": pathContract}})
	require.NoError(w, err, "%+v", err)
	active, err := w.engine.PolicyHash(w.Context(), tenant)
	require.NoError(w, err)
	require.NoError(w, w.engine.ActivatePolicy(w.Context(), local, stored.Hash, active))
}

func (w *world) switchOn(on bool) {
	w.Helper()
	for _, scope := range []string{"global", "tenant"} {
		_, err := w.ops.SetSwitch(w.Context(), scope, on, "test")
		require.NoError(w, err)
	}
}

// The preparations of scenarios: they make their calls once, before any fault.

// claimed claims a new event with an owner of the caller's.
func (w *world) claimed(workflow, key string) (string, client.Work) {
	w.Helper()
	a, err := w.machine.Claim(w.Context(), claimOf(workflow, key))
	require.NoError(w, err)
	require.Equal(w, holdpoint.Claimed, a.Outcome)
	return a.Run.ID, client.Work{Owner: a.Lease.Owner, Version: a.Lease.Version}
}

func claimOf(workflow, key string) client.ClaimRequest {
	return client.ClaimRequest{Workflow: workflow, Key: key, Owner: uuid.NewString(), Payload: json.RawMessage(`{"to":"jane@customer.example"}`)}
}

func (w *world) held(workflow, key string) client.Draft {
	w.Helper()
	id, work := w.claimed(workflow, key)
	d, err := w.machine.SubmitDraft(w.Context(), id, draftOf(work, `{"reply":"Hello"}`))
	require.NoError(w, err)
	require.Equal(w, "held", d.Outcome)
	return d
}

func draftOf(work client.Work, output string) client.DraftRequest {
	return client.DraftRequest{Work: work, Output: json.RawMessage(output), Model: holdpoint.Model{Name: "m"}}
}

func (w *world) approved(workflow, key string) holdpoint.Effect {
	w.Helper()
	d := w.held(workflow, key)
	out, err := w.ana.Decide(w.Context(), d.Approval.ID, client.DecisionRequest{Decision: holdpoint.DecisionApprove, Digest: d.Approval.Digest})
	require.NoError(w, err)
	require.Len(w, out.Effects, 1)
	return out.Effects[0]
}

// begun leaves what a process leaves that dies during a call which the provider accepts.
func (w *world) begun(workflow, key string) (holdpoint.Effect, engine.Task, store.BegunAttempt) {
	w.Helper()
	x := w.approved(workflow, key)
	tasks, err := w.engine.LeaseEffects(w.Context(), "dead", 10*time.Second, 1, nil)
	require.NoError(w, err)
	require.Len(w, tasks, 1)
	attempt, ok, err := w.engine.Begin(w.Context(), "dead", &tasks[0], "wire", time.Second)
	require.NoError(w, err)
	require.True(w, ok)
	body := fmt.Sprintf(`{"text":"Hello","external_ref":%q,"to":"jane@customer.example"}`, x.Reference)
	r, err := http.Post(w.provider.URL()+"/notes", "application/json", strings.NewReader(body))
	require.NoError(w, err)
	require.NoError(w, r.Body.Close())
	return x, tasks[0], attempt
}

// unknown leaves an effect that the provider has accepted and nobody knows of.
func (w *world) unknown(workflow, key string) holdpoint.Effect {
	w.Helper()
	x, task, attempt := w.begun(workflow, key)
	_, err := w.engine.Settle(w.Context(), "dead", &task, attempt, holdpoint.Outcome{Result: holdpoint.Unclear, Phase: holdpoint.PhaseWritten, Class: holdpoint.ClassAmbiguous})
	require.NoError(w, err)
	return x
}

// What callers do when their calls meet faults.

const tries = 20 // of one call; no scenario plans as many faults

// again makes a call and repeats it, unchanged, while its answer is unavailable, as every client may. After a lost answer a
// code of stands is an answer too: what was asked for stands already.
func (w *world) again(call func() error, stands ...holdpoint.Code) {
	w.Helper()
	lost := false
	for range tries {
		err := call()
		var e *holdpoint.Error
		switch {
		case err == nil:
			return
		case !errors.As(err, &e):
			require.NoError(w, err)
		case e.Code == holdpoint.CodeUnavailable:
			w.clear(e)
			lost = true
			continue
		case lost:
			for _, code := range stands {
				if e.Code == code {
					return
				}
			}
		}
		require.NoError(w, err)
	}
	w.Fatalf("unavailable %d times", tries)
}

// ask is again with an answer.
func ask[A any](w *world, call func(context.Context) (A, error), stands ...holdpoint.Code) (a A) {
	w.Helper()
	w.again(func() (err error) { a, err = call(w.Context()); return err }, stands...)
	return a
}

var sentence = regexp.MustCompile(`(?i)(repeat|again|its log says why)`)

// clear holds an answer to what a caller needs: 503, when to come again, and one sentence that says what to do.
func (w *world) clear(e *holdpoint.Error) {
	w.Helper()
	w.unanswered++
	require.EqualValues(w, http.StatusServiceUnavailable, e.Detail["status"])
	require.GreaterOrEqual(w, client.RetryAfter(e), time.Second)
	require.Regexp(w, sentence, e.Message)
	require.NotContains(w, e.Message, "injected", "the cause is for the log")
}

// until waits for a condition. When nothing comes of it for a while, time passes for the database: leases that a lost
// answer has left behind run out. The whiles grow, so that a slow machine gets its work done in between.
func (w *world) until(what string, met func() bool) {
	w.Helper()
	if !w.within(patience, met) {
		w.Fatalf("not in time: %s; %s", what, strings.Join(w.outcome(), "\n"))
	}
}

// soon waits for what need not come: a second or third call that another timing makes needless.
func (w *world) soon(met func() bool) bool { return w.within(3*time.Second, met) }

func (w *world) within(bound time.Duration, met func() bool) bool {
	deadline, while := time.Now().Add(bound), 400*time.Millisecond
	push := time.Now().Add(while)
	for !met() {
		if time.Now().After(deadline) {
			return false
		}
		if time.Now().After(push) {
			w.pass(20 * time.Second)
			while *= 2
			push = time.Now().Add(while)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return true
}

// told waits until every message about a run has left, if anybody sends messages.
func (w *world) told() {
	w.Helper()
	if !w.dispatching {
		return
	}
	runs, _, err := w.store.FindRuns(w.Context(), store.RunFilter{Tenant: tenant, Limit: 100})
	require.NoError(w, err)
	for _, r := range runs {
		w.until("the messages of "+r.Key+" have left", func() bool {
			rec, err := w.store.Record(w.Context(), tenant, r.ID)
			require.NoError(w, err)
			return !slices.ContainsFunc(rec.Messages, func(m holdpoint.MessageRecord) bool { return m.State == "pending" })
		})
	}
}

// effect waits for the effect of a run to come to a state, looking below the faults.
func (w *world) effect(runID string, states ...holdpoint.EffectState) {
	w.Helper()
	w.until(fmt.Sprintf("the effect of %s is %v", runID, states), func() bool {
		rec, err := w.store.Record(w.Context(), tenant, runID)
		require.NoError(w, err)
		for _, s := range states {
			if len(rec.Effects) == 1 && rec.Effects[0].State == s {
				return true
			}
		}
		return false
	})
}

// browser is one person's browser.
type browser struct {
	*world
	http *http.Client
}

func (w *world) browser() *browser {
	jar, err := cookiejar.New(nil)
	require.NoError(w, err)
	return &browser{w, &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// do makes a request and repeats it, as a person does who reloads a page that says so. It gives status and page.
func (b *browser) do(method, path string, form url.Values) (status int, page string) {
	b.Helper()
	b.again(func() error {
		r, err := http.NewRequestWithContext(b.Context(), method, b.url+path, strings.NewReader(form.Encode()))
		if err != nil {
			return err
		}
		if method == http.MethodPost {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("Sec-Fetch-Site", "same-origin")
		}
		resp, err := b.http.Do(r)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		status, page = resp.StatusCode, string(body)
		if err == nil && status == http.StatusServiceUnavailable {
			seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
			require.Contains(b, page, "<code>unavailable</code>")
			return (&holdpoint.Error{Code: holdpoint.CodeUnavailable, Message: "repeat"}).With("status", status).With("retry_after", seconds)
		}
		return err
	})
	return status, page
}

var hidden = regexp.MustCompile(`<input type="hidden" name="([a-z_]+)" value="([^"]*)">`)

// submit fills in the form of a page that goes to an address.
func (b *browser) submit(page, action string, fields ...string) (int, string) {
	b.Helper()
	_, form, found := strings.Cut(page, `action="`+action+`"`)
	require.True(b, found, "no form for %s: %s", action, page)
	form, _, _ = strings.Cut(form, "</form>")
	return b.submitTo(form, action, fields...)
}

// submitTo is submit for a form that goes to the address of its own page.
func (b *browser) submitTo(page, address string, fields ...string) (int, string) {
	b.Helper()
	form := url.Values{}
	for _, field := range hidden.FindAllStringSubmatch(page, -1) {
		form.Set(field[1], field[2])
	}
	for i := 0; i+1 < len(fields); i += 2 {
		form.Set(fields[i], fields[i+1])
	}
	return b.do(http.MethodPost, address, form)
}

// find gives a run by its key, below the faults.
func (w *world) find(key string) holdpoint.Run {
	w.Helper()
	runs, _, err := w.store.FindRuns(w.Context(), store.RunFilter{Tenant: tenant, Key: key, Limit: 2})
	require.NoError(w, err)
	require.Len(w, runs, 1)
	return runs[0]
}

// record gives all that stands about a run by its key, below the faults.
func (w *world) record(key string) store.Record {
	w.Helper()
	rec, err := w.store.Record(w.Context(), tenant, w.find(key).ID)
	require.NoError(w, err)
	return rec
}

// approvalOf gives the approval of a run by the run's key, below the faults.
func (w *world) approvalOf(key string) string {
	w.Helper()
	rec := w.record(key)
	require.Len(w, rec.Approvals, 1)
	return rec.Approvals[0].ID
}

func code(err error) holdpoint.Code {
	var e *holdpoint.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// local is again for a command that opens the store itself: no HTTP status comes with its errors.
func (w *world) local(call func() error, stands ...holdpoint.Code) {
	w.Helper()
	w.again(func() error {
		err := call()
		var e *holdpoint.Error
		if errors.As(err, &e) {
			return e.With("status", http.StatusServiceUnavailable).With("retry_after", 1)
		}
		return err
	}, stands...)
}
