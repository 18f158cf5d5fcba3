package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/internal/httpserver"
	"github.com/holdpoint/holdpoint/internal/payload"
)

// example is one call that succeeds: who makes it, where and with what body.
type example struct{ who, path, body string }

// nowhere is an id that no object has.
const nowhere = "00000000-0000-7000-8000-000000000000"

// examples prepares what each operation needs and gives a call of it that succeeds, by operationId.
func (w *world) examples() map[string]func() example {
	n := 0
	key := func() string { n++; return fmt.Sprintf("EX-%d", n) }
	lease := func(work client.Work, rest string) string {
		return fmt.Sprintf(`{"owner":%q,"version":%d%s}`, work.Owner, work.Version, rest)
	}
	work := func(verb, rest string) func() example {
		return func() example {
			a, lent := w.claimed("ticket-reply", key())
			return example{"machine", "/v1/runs/" + a.Run.ID + verb, lease(lent, rest)}
		}
	}
	plain := func(who, path, body string) func() example {
		return func() example { return example{who, path, body} }
	}
	run := func(verb, body string) func() example {
		return func() example { return example{"ops", "/v1/runs/" + w.held("ticket-reply", key()).Run.ID + verb, body} }
	}
	approval := func(who, verb, body string) func() example {
		return func() example {
			d := w.held("ticket-reply", key())
			return example{who, "/v1/approvals/" + d.Approval.ID + verb, strings.ReplaceAll(body, "DIGEST", d.Approval.Digest)}
		}
	}
	released := func(verb, body string) func() example {
		return func() example {
			return example{"ops", "/v1/effects/" + w.approved("ticket-reply", key()).Effects[0].ID + verb, body}
		}
	}
	unknown := func(verb, body string) func() example {
		return func() example {
			return example{"ops", "/v1/effects/" + w.unknown("ticket-reply", key()).ID + verb, body}
		}
	}
	person := func(verb, body string) func() example {
		return func() example {
			email := strings.ToLower(key()) + "@acme.example"
			w.person(email)
			if strings.Contains(verb, "/grants/") {
				require.NoError(w, w.ops.GrantRole(w.Context(), email, "auditor"))
			}
			return example{"ops", "/v1/users/" + email + verb, body}
		}
	}
	return map[string]func() example{
		"claim": func() example {
			return example{"machine", "/v1/claims", `{"owner":"` + uuid.NewString() + `",` + claimBody("ticket-reply", key())[1:]}
		},
		"claimBatch": func() example {
			return example{"machine", "/v1/claims/batch", `{"claims":[{"owner":"` + uuid.NewString() + `",` + claimBody("ticket-reply", key())[1:] + `]}`}
		},
		"claimRun": func() example {
			a, _ := w.claimed("ticket-reply", key())
			return example{"machine", "/v1/runs/" + a.Run.ID + "/claim", `{"execution_id":"e-1"}`}
		},
		"renewLease": work("/renew", ""), "beginStep": work("/steps/a/begin", ""), "failRun": work("/fail", `,"class":"model_timeout"`),
		"submitDraft": work("/draft", `,"output":{"reply":"Hello"}`), "completeRun": work("/complete", `,"result":{"a":1}`),
		"finishStep": func() example {
			a, lent := w.claimed("ticket-reply", key())
			_, err := w.machine.BeginStep(w.Context(), a.Run.ID, "a", client.StepRequest{Work: lent})
			require.NoError(w, err)
			return example{"machine", "/v1/runs/" + a.Run.ID + "/steps/a/finish", lease(lent, `,"result":{"a":1}`)}
		},
		"resolveStep": func() example {
			return example{"ops", "/v1/runs/" + w.uncertain(key()) + "/steps/a/resolve", `{"verdict":"done","reason":"seen"}`}
		},
		"listRuns": plain("ops", "/v1/runs?limit=2", ""), "getRun": run("", ""), "getRunEvidence": run("/evidence", ""), "getTenantEvidence": plain("ops", "/v1/evidence", ""),
		"cancelRun": func() example {
			a, lent := w.claimed("ticket-reply", key())
			_, err := w.machine.Fail(w.Context(), a.Run.ID, client.FailRequest{Work: lent, Failure: client.Failure{Class: holdpoint.ClassModelTimeout}})
			require.NoError(w, err)
			return example{"ops", "/v1/runs/" + a.Run.ID + "/cancel", `{"reason":"no longer wanted"}`}
		},
		"replaceRun": func() example {
			return example{"ops", "/v1/runs/" + w.held("ticket-reply", key()).Run.ID + "/replace", `{"key":"N` + key() + `","payload":` + event + `,"reason":"corrected"}`}
		},
		"listApprovals": plain("ana", "/v1/approvals", ""), "getApproval": approval("ana", "", ""),
		"decide":           approval("ana", "/decisions", `{"decision":"approve","digest":"DIGEST"}`),
		"withdrawApproval": approval("ops", "/withdraw", `{"reason":"wrong"}`),
		"listEffects":      plain("ops", "/v1/effects", ""), "getEffect": released("", ""), "cancelEffect": released("/cancel", `{"reason":"not now"}`),
		"reconcileEffect": unknown("/reconcile", ""), "resolveEffect": unknown("/resolve", `{"verdict":"sent","reason":"seen there"}`),
		"getSwitches": plain("ops", "/v1/switches", ""), "setSwitch": plain("ops", "/v1/switches/connector:crm", `{"on":false,"reason":"maintenance"}`),
		"listConnectors": plain("ops", "/v1/connectors", ""), "releaseConnector": plain("ops", "/v1/connectors/crm/release", ""),
		"putPolicy": func() example {
			active, err := w.ops.Policy(w.Context(), "active")
			require.NoError(w, err)
			return example{"ops", "/v1/policies", fmt.Sprintf(`{"document":%q,"files":{"reply.json":%q}}`, strings.Replace(active.Document, "repairs: 1", "repairs: 2", 1), replySchema)}
		},
		"listPolicies": plain("ops", "/v1/policies", ""), "getPolicy": plain("ops", "/v1/policies/active", ""),
		"activatePolicy": func() example {
			active, err := w.ops.Policy(w.Context(), "active")
			require.NoError(w, err)
			next, err := w.ops.PutPolicy(w.Context(), strings.Replace(active.Document, "attempts: 2", "attempts: 3", 1), active.Files)
			require.NoError(w, err)
			return example{"ops", "/v1/policies/" + next.Hash + "/activate", `{"expected_active":"` + active.Hash + `"}`}
		},
		"listUsers": plain("ops", "/v1/users", ""), "addUser": func() example { return example{"ops", "/v1/users", `{"email":"` + key() + `@acme.example"}`} },
		"disableUser": person("", ""), "enableUser": person("/enable", ""), "grantRole": person("/grants", `{"role":"auditor"}`), "revokeRole": person("/grants/auditor", ""),
		"listKeys": plain("ops", "/v1/keys", ""), "createKey": plain("ops", "/v1/keys", `{"name":"n","scopes":["read"]}`),
		"revokeKey": func() example {
			k, err := w.ops.CreateKey(w.Context(), "n", []holdpoint.Scope{holdpoint.ScopeRead})
			require.NoError(w, err)
			return example{"ops", "/v1/keys/" + k.ID, ""}
		},
		"createToken": plain("ops", "/v1/me/tokens", `{"name":"n","scopes":["read"]}`), "getMe": plain("machine", "/v1/me", ""),
		"getOpenAPI": plain("", "/openapi.json", ""), "getHealth": plain("", "/healthz", ""), "getReadiness": plain("", "/readyz", ""),
	}
}

// uncertain makes a run with a step `a` whose end nobody knows, and gives the run's id.
func (w *world) uncertain(key string) string {
	w.Helper()
	a, lent := w.claimed("ticket-reply", key)
	_, err := w.machine.BeginStep(w.Context(), a.Run.ID, "a", client.StepRequest{Work: lent, SideEffect: true})
	require.NoError(w, err)
	before := w.ahead.Load()
	w.ahead.Store(before + int64(time.Hour))
	next, err := w.machine.ClaimRun(w.Context(), a.Run.ID, client.ClaimRunRequest{ExecutionID: "e-2"})
	require.NoError(w, err)
	s, err := w.machine.BeginStep(w.Context(), a.Run.ID, "a", client.StepRequest{SideEffect: true,
		Work: client.Work{Owner: next.Lease.Owner, Version: next.Lease.Version, ExecutionID: "e-2"}})
	require.NoError(w, err)
	require.Equal(w, "uncertain", s.Outcome)
	w.ahead.Store(before)
	return a.Run.ID
}

func method(rt route) string { m, _, _ := strings.Cut(rt.pattern, " "); return m }

// TestEveryCall makes an example of each operation and then, wrongly, the same call again in every way in which any call
// can be refused. The documented answers are held by the world.
func TestEveryCall(t *testing.T) {
	w := newWorld(t, Options{Limits: payload.Limits{MaxBytes: 16 << 10}})
	examples := w.examples()
	require.Len(t, examples, len(routes()))
	for _, rt := range routes() {
		t.Run(rt.id, func(t *testing.T) {
			require.Contains(t, examples, rt.id)
			x, m := examples[rt.id](), method(rt)
			missing := elsewhere(rt, x.path)
			if missing != "" {
				r := w.do(x.who, m, missing, x.body)
				require.Contains(t, []int{http.StatusNotFound, http.StatusForbidden}, r.StatusCode, "%s: %s", missing, r.text)
			}
			r := w.do(x.who, m, x.path, x.body)
			if rt.id == "claimRun" {
				require.Equal(t, http.StatusConflict, r.StatusCode, r.text)
			} else {
				require.Less(t, r.StatusCode, 300, r.text)
			}

			join := "?"
			if strings.Contains(x.path, "?") {
				join = "&"
			}
			w.refused(w.do(x.who, m, x.path+join+"odd=1", x.body), holdpoint.CodeInvalidRequest)
			if !rt.open {
				w.refused(w.do("", m, x.path, x.body), holdpoint.CodeUnauthenticated)
				if rt.id != "getMe" && rt.id != "claimBatch" {
					require.Equal(t, http.StatusForbidden, w.do("content", m, x.path, x.body).StatusCode)
				}
			}
			if rt.request == nil {
				return
			}
			body := x.body
			if body == "" {
				body = "{}"
			}
			long := `{"odd":"` + strings.Repeat("x", 16*16<<10) + `"}`
			deep := `{"odd":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`
			w.refused(w.do(x.who, m, x.path, body, "Content-Type", "text/plain"), holdpoint.CodeUnsupportedMedia)
			w.refused(w.do(x.who, m, x.path, body, "Content-Encoding", "gzip"), holdpoint.CodeUnsupportedMedia)
			w.refused(w.do(x.who, m, x.path, long), holdpoint.CodeTooLarge)
			w.refused(w.do(x.who, m, x.path, body[:len(body)-1]), holdpoint.CodeInvalidJSON)
			for _, odd := range []string{`{"odd":1}`, `[]`, `null`, `"text"`, `{"Owner":1}`} {
				w.refused(w.do(x.who, m, x.path, odd), holdpoint.CodeInvalidRequest)
			}
			if rt.id != "claimBatch" { // a batch answers for each of its claims
				w.refused(w.do(x.who, m, x.path, deep), holdpoint.CodeTooDeep)
				w.refused(w.do(x.who, m, x.path, `{"a":1,"a":2}`), holdpoint.CodeInvalidJSON)
			}
			if !rt.optional {
				r = w.do(x.who, m, x.path, "")
				w.refused(r, holdpoint.CodeInvalidJSON)
				require.Equal(t, "The request has no body; send one JSON object.", r.json["detail"])
			}
		})
	}
}

// elsewhere is the path of the same call about an object that is not there; "" if the call names none.
func elsewhere(rt route, path string) string {
	_, pattern, _ := strings.Cut(rt.pattern, " ")
	parts, had := strings.Split(path, "/"), false
	for i, p := range strings.Split(pattern, "/") {
		switch p {
		case "{id}":
			parts[i], had = nowhere, true
		case "{hash}":
			parts[i], had = strings.Repeat("0", 64), true
		case "{email}":
			parts[i], had = "nobody@acme.example", true
		}
	}
	if !had {
		return ""
	}
	return strings.Join(parts, "/")
}

// TestRequiredMembers leaves out each member of each example in turn. What is accepted, the document must not require;
// the world holds that. What is refused as incomplete, the document requires, unless it depends on another member.
func TestRequiredMembers(t *testing.T) {
	depends := map[string]string{"decide digest": "", "claim key": "or operation, or a header", "replaceRun key": "or operation"}
	w := newWorld(t, Options{})
	examples := w.examples()
	for _, rt := range routes() {
		if rt.request == nil || rt.id == "claimBatch" {
			continue
		}
		var members map[string]json.RawMessage
		x := examples[rt.id]()
		if x.body == "" {
			continue
		}
		require.NoError(t, json.Unmarshal([]byte(x.body), &members))
		for name := range members {
			x := examples[rt.id]()
			require.NoError(t, json.Unmarshal([]byte(x.body), &members))
			delete(members, name)
			body, err := json.Marshal(members)
			require.NoError(t, err)
			r := w.do(x.who, method(rt), x.path, string(body))
			required := slices.Contains(w.contract.required(rt), name)
			if _, known := depends[rt.id+" "+name]; !known && required != (r.StatusCode >= 400) {
				t.Errorf("%s without %s: required %v, answered %d %.200s", rt.id, name, required, r.StatusCode, r.text)
			}
		}
	}
}

// TestEveryCallUnderDuress makes each call where the caller has used up its allowance, where the store is gone and where
// the program is broken.
func TestEveryCallUnderDuress(t *testing.T) {
	w := newWorld(t, Options{})
	calls := map[string]example{}
	for id, prepare := range w.examples() {
		calls[id] = prepare()
	}
	narrow, broken := w.serve(w.engine, Options{Limiter: httpserver.NewLimiter(1e-6, 1)}), w.serve(nil, Options{})
	whole := w.url
	each := func(at string, do func(rt route, x example)) {
		w.url = at
		defer func() { w.url = whole }()
		for _, rt := range routes() {
			do(rt, calls[rt.id])
		}
	}
	w.url = narrow
	for _, who := range []string{"", "machine", "ana", "ops"} {
		w.do(who, "GET", "/v1/me", "")
	}
	each(narrow, func(rt route, x example) {
		w.refused(w.do(x.who, method(rt), x.path, x.body), holdpoint.CodeRateLimited)
	})
	each(broken, func(rt route, x example) {
		if rt.id != "getHealth" && rt.id != "getOpenAPI" {
			w.refused(w.do(x.who, method(rt), x.path, x.body), holdpoint.CodeInternal)
		}
	})
	require.NoError(t, w.store.Close())
	each(whole, func(rt route, x example) {
		if rt.id != "getHealth" && rt.id != "getOpenAPI" {
			w.refused(w.do(x.who, method(rt), x.path, x.body), holdpoint.CodeUnavailable)
		}
	})
}

// repeatHeading is the part of docs/errors.md that says what a repeat of each call does.
const repeatHeading = "Repeating a call"

// TestRepeats makes each call that changes something twice and holds docs/errors.md to what the second one answers:
// `same` as the first, `refused` because it stands already, or `again`, which makes another object.
func TestRepeats(t *testing.T) {
	page, err := os.ReadFile("../../docs/errors.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "## "+repeatHeading)
	require.True(t, found)
	said := map[string]string{}
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) == 5 && strings.HasPrefix(line, "| `") {
			for id := range strings.SplitSeq(strings.ReplaceAll(cells[1], "`", ""), ",") {
				said[strings.TrimSpace(id)] = strings.Trim(cells[2], " `")
			}
		}
	}
	w := newWorld(t, Options{})
	examples := w.examples()
	for _, rt := range routes() {
		m := method(rt)
		if m == http.MethodGet {
			continue
		}
		x := examples[rt.id]()
		first := w.do(x.who, m, x.path, x.body)
		second := w.do(x.who, m, x.path, x.body)
		is := "same"
		switch {
		case second.StatusCode >= 400 && second.StatusCode != first.StatusCode:
			is = "refused"
		case second.StatusCode == http.StatusCreated && first.json["id"] != nil && first.json["id"] != second.json["id"]:
			is = "again"
		}
		require.Less(t, second.StatusCode, 500, second.text)
		t.Logf("%s: %d %d %s %.150s", rt.id, first.StatusCode, second.StatusCode, is, second.text)
		if is != said[rt.id] {
			t.Errorf("%s: a repeat is %q and not %q: %s", rt.id, is, said[rt.id], second.text)
		}
		delete(said, rt.id)
	}
	require.Empty(t, said, "no call")
}
