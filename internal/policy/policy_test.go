package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sample uses every key that this version accepts.
const sample = `version: 1
tenant: acme
redelivery_window: 30d
roles:
  support-lead: {users: [Ana@acme.example, bo@acme.example, ANA@acme.example]}
  operator: {users: [ops@acme.example]}
connectors:
  crm:
    kind: http
    method: POST
    url: "https://crm.acme.example/api/contacts/${effect.target}/notes"
    headers: {authorization: "Bearer ${env:CRM_TOKEN}", X-Run: "${effect.run_id}"}
    body: {text: "${effect.payload.text}", amount: "${effect.payload.amount}", external_ref: "${effect.reference}", fixed: 1.50, on: true, none: null}
    idempotency: {header: idempotency-key, max_length: 64, lifetime: 24h}
    success: [200, 201]
    provider_id: /id
    lookup:
      url: "https://crm.acme.example/api/notes?external_ref=${effect.reference}"
      found: "size(response.results) == 1"
      absent: "size(response.results) == 0"
      provider_id: /results/0/id
      max_lag: 2m
      settle: [30s, 2m]
    timeout: 10s
    concurrency: 4
  plain: {kind: http, url: "https://crm.acme.example/api/plain"}
channels:
  approvers: {kind: smtp, url: "smtp://mail.acme.example:587", username: holdpoint, password: "${file:/run/secrets/smtp}", from: "Holdpoint <holdpoint@acme.example>"}
  pager: {kind: webhook, url: "https://alerts.acme.example/hook", secret: "${env:PAGER_SECRET}"}
  direct: {kind: webhook, url: "${env:HOOK}", secret: "${env:PAGER_SECRET}", personal: true}
workflows:
  ticket-reply:
    contract: schemas/ticket-reply.json
    repairs: 1
    key_scope: tickets
    fingerprint: {ignore: [/delivered_at, /attempt]}
    initiator: /created_by
    lease: {initial: 5m, cap: 20m, steal_alert: 3, steal_cap: 4}
    subject: /customer/email
    effects:
      reply:
        type: email.reply
        connector: plain
        consequence: customer_message
        target: "${event.customer.email}"
        payload: {subject: "Re: ${event.subject}", text: "${draft.reply}", amount: "${event.amount}"}
      note:
        type: crm.note
        connector: crm
        consequence: crm_change
        target: "${event.customer.id}"
        payload: {text: "${draft.summary}"}
        after: [reply]
        when: "draft.label != 'spam'"
        reversible: {by: "delete the note", within: 10m}
      tell:
        type: email.tell
        connector: plain
        consequence: customer_message
        for_each: event.watchers
        as: w
        slot_key: "${w.email}"
        target: "${w.email}"
        payload: {total: "${w.total}"}
        after: [note]
    gate:
      pattern: approve_before_act
      roles: [support-lead]
      quorum: 1
      assurance: login
      approve_by: 12h
      execute_by: 1d12h
      on_expiry: reject
      notify: [approvers]
    alerts: [pager]
    retry: {run: {attempts: 4, budget: 1h}, effect: {attempts: 5, budget: 3h}}
    expired_keep: 3d
`

var sampleFiles = map[string][]byte{"schemas/ticket-reply.json": []byte(`{"type": "object"}`)}

func mustParse(t testing.TB, doc string) *Policy {
	t.Helper()
	p, findings := Parse([]byte(doc), sampleFiles, Options{})
	require.NotNil(t, p, "%v", findings)
	return p
}

// with replaces one text of the sample that stands there exactly once.
func with(t testing.TB, pairs ...string) string {
	t.Helper()
	doc := sample
	for i := 0; i < len(pairs); i += 2 {
		require.Equal(t, 1, strings.Count(doc, pairs[i]), "%q stands once", pairs[i])
		doc = strings.Replace(doc, pairs[i], pairs[i+1], 1)
	}
	return doc
}

func TestParseReadsEveryKey(t *testing.T) {
	p, findings := Parse([]byte(sample), sampleFiles, Options{})
	require.Empty(t, findings)
	require.Equal(t, "acme", p.Tenant)
	require.Equal(t, 30*24*time.Hour, p.RedeliveryWindow)
	require.Equal(t, []string{"ana@acme.example", "bo@acme.example"}, p.Roles["support-lead"].Users)
	require.Equal(t, Hash([]byte(sample), sampleFiles), p.Hash)

	w := p.Workflows["ticket-reply"]
	require.Equal(t, "tickets", w.KeyScope)
	require.Equal(t, "schemas/ticket-reply.json", w.ContractFile)
	require.JSONEq(t, `{"type": "object"}`, string(w.ContractSchema))
	require.Equal(t, 1, w.Repairs)
	require.Equal(t, []string{"/delivered_at", "/attempt"}, w.Ignore)
	require.Equal(t, "/created_by", w.Initiator)
	require.Equal(t, "/customer/email", w.Subject)
	require.Equal(t, Lease{Initial: 5 * time.Minute, Cap: 20 * time.Minute, StealAlert: 3, StealCap: 4}, w.Lease)
	require.Equal(t, Gate{PatternApproveBeforeAct, []string{"support-lead"}, AssuranceLogin, 12 * time.Hour, 36 * time.Hour, []string{"approvers"}}, w.Gate)
	require.Equal(t, []string{"pager"}, w.Alerts)
	require.Equal(t, Retry{4, time.Hour, 5, 3 * time.Hour}, w.Retry)
	require.Equal(t, 3*24*time.Hour, w.ExpiredKeep)
	require.Len(t, w.Effects, 3)
	require.Equal(t, []string{"reply", "note", "tell"}, []string{w.Effects[0].Name, w.Effects[1].Name, w.Effects[2].Name})
	require.Equal(t, &Reversible{"delete the note", 10 * time.Minute}, w.Effects[1].Reversible)

	c := p.Connectors["crm"]
	require.Equal(t, "https://crm.acme.example", c.Target)
	require.Equal(t, []int{200, 201}, c.Success)
	require.Equal(t, &Idempotency{"Idempotency-Key", 64, 24 * time.Hour}, c.Idempotency)
	require.Equal(t, 2*time.Minute, c.Lookup.MaxLag)
	require.Equal(t, []time.Duration{30 * time.Second, 2 * time.Minute}, c.Lookup.Settle)
	require.Equal(t, "/results/0/id", c.Lookup.ProviderID)
	require.Equal(t, 10*time.Second, c.Timeout)
	require.Equal(t, 4, c.Concurrency)
	require.Len(t, c.Version, 64)
	require.True(t, p.Channels["approvers"].Private())
	require.True(t, p.Channels["direct"].Private())
	require.False(t, p.Channels["pager"].Private())
}

func TestParseFillsDefaults(t *testing.T) {
	p := mustParse(t, `version: 1
redelivery_window: 7d
roles: {lead: {users: [a@x.example, b@x.example]}}
connectors: {c: {kind: http, url: "https://x.example/"}}
workflows:
  w:
    contract: schemas/ticket-reply.json
    effects: {note: {type: note, connector: c, consequence: internal_note, target: "x"}}
    gate: {roles: [lead]}
`)
	require.Equal(t, "default", p.Tenant)
	w, c := p.Workflows["w"], p.Connectors["c"]
	require.Equal(t, "w", w.KeyScope)
	require.Equal(t, 2, w.Repairs)
	require.Equal(t, Lease{Initial: 5 * time.Minute, Cap: 30 * time.Minute, StealAlert: 2, StealCap: 5}, w.Lease)
	require.Equal(t, Gate{PatternApproveBeforeAct, []string{"lead"}, AssuranceLogin, 24 * time.Hour, 48 * time.Hour, nil}, w.Gate)
	require.Equal(t, Retry{3, 2 * time.Hour, 8, 6 * time.Hour}, w.Retry)
	require.Equal(t, 7*24*time.Hour, w.ExpiredKeep)
	require.Equal(t, []int{200, 201, 202, 204}, c.Success)
	require.Equal(t, 20*time.Second, c.Timeout)
	require.Equal(t, 8, c.Concurrency)
	call, err := c.Call(Vars{Payload: []byte(`{"a":1.0}`)}, nil)
	require.NoError(t, err)
	require.Equal(t, HTTPCall{"POST", "https://x.example/", map[string]string{"Content-Type": "application/json"}, []byte(`{"a":1.0}`)}, call)
}

// TestRefusedByName holds that what a later version brings is refused, never parsed and ignored.
func TestRefusedByName(t *testing.T) {
	for name, doc := range map[string]string{
		"groups":               with(t, "operator: {users: [ops@acme.example]}", "operator: {users: [ops@acme.example], groups: [ops]}"),
		"qualification":        with(t, "operator: {users: [ops@acme.example]}", "operator: {users: [ops@acme.example], qualification: none}"),
		"quorum":               with(t, "quorum: 1", "quorum: 2"),
		"quorum map":           with(t, "quorum: 1", "quorum: {support-lead: 1}"),
		"act_with_window":      with(t, "pattern: approve_before_act", "pattern: act_with_window"),
		"approve_by_exception": with(t, "pattern: approve_before_act", "pattern: approve_by_exception"),
		"window":               with(t, "quorum: 1", "window: 10m"),
		"exception":            with(t, "quorum: 1", "exception: {when: 'true'}"),
		"sso":                  with(t, "assurance: login", "assurance: sso"),
		"sso+fresh":            with(t, "assurance: login", "assurance: sso+fresh"),
		"remind":               with(t, "quorum: 1", "remind: [4h]"),
		"escalate map":         with(t, "on_expiry: reject", "on_expiry: {escalate: operator}"),
		"escalate text":        with(t, "on_expiry: reject", `on_expiry: "escalate: operator"`),
		"medical":              with(t, "consequence: crm_change", "consequence: medical"),
		"legal":                with(t, "consequence: crm_change", "consequence: legal"),
		"regulated_finance":    with(t, "consequence: crm_change", "consequence: regulated_finance"),
		"child_safety":         with(t, "consequence: crm_change", "consequence: child_safety"),
		"structural":           with(t, "consequence: crm_change", "consequence: structural"),
		"smtp":                 with(t, `plain: {kind: http, url: "https://crm.acme.example/api/plain"}`, `plain: {kind: smtp, url: "smtp://x.example", lookup: {imap: "imaps://x.example", folder: Sent}}`),
		"n8n":                  with(t, "plain: {kind: http,", "plain: {kind: n8n,"),
		"hermes":               with(t, "plain: {kind: http,", "plain: {kind: hermes,"),
		"sandbox":              with(t, "    provider_id: /id\n", "    sandbox: {target: T}\n"),
		"imap":                 with(t, "      settle: [30s, 2m]\n", "      imap: imaps://x.example\n"),
		"folder":               with(t, "      settle: [30s, 2m]\n", "      folder: Sent\n"),
		"models":               with(t, "tenant: acme\n", "models: {hosted: {base_url: 'https://x.example'}}\n"),
		"model":                with(t, "    repairs: 1\n", "    model: {use: [local]}\n"),
		"callback":             with(t, "    repairs: 1\n", "    callback: {resume: true}\n"),
		"retention":            with(t, "    repairs: 1\n", "    retention: {payload: 30d}\n"),
		"slack":                with(t, "pager: {kind: webhook,", "pager: {kind: slack,"),
		"teams":                with(t, "pager: {kind: webhook,", "pager: {kind: teams,"),
		"undo":                 with(t, "        after: [reply]\n", "        undo: {type: crm.delete}\n"),
	} {
		t.Run(name, func(t *testing.T) {
			p, findings := Parse([]byte(doc), sampleFiles, Options{})
			require.Nil(t, p)
			require.Len(t, findings, 1)
			f := findings[0]
			require.Equal(t, "not_in_this_version", f.Code)
			require.Equal(t, SeverityError, f.Severity)
			require.Contains(t, f.Message, "not in this version: ")
			word := strings.Fields(name)[0]
			require.Contains(t, f.Message, `"`+word+`"`)
			// The finding points at the key or at the value.
			line := strings.Split(doc, "\n")[f.Line-1]
			if word != "quorum" { // there the finding is at the number
				require.Contains(t, line[f.Column-1:], word)
			}
		})
	}
}

func TestChecks(t *testing.T) {
	const plain = `plain: {kind: http, url: "https://crm.acme.example/api/plain"}`
	connector := func(rest string) string { return with(t, plain, "plain: {kind: http, "+rest+"}") }
	for name, test := range map[string]struct{ doc, code string }{
		"unknown top key":        {with(t, "tenant: acme\n", "tennant: acme\n"), "unknown_key"},
		"unknown nested key":     {with(t, "quorum: 1", "quorums: 1"), "unknown_key"},
		"duplicate key":          {with(t, "quorum: 1", "assurance: login"), "duplicate_key"},
		"duplicate header":       {connector(`url: "https://x.example/", headers: {X-A: a, x-a: b}`), "duplicate_key"},
		"version":                {with(t, "version: 1", "version: 2"), "invalid_value"},
		"no version":             {with(t, "version: 1\n", ""), "missing"},
		"no window":              {with(t, "redelivery_window: 30d\n", ""), "missing"},
		"short window":           {with(t, "redelivery_window: 30d", "redelivery_window: 6d23h"), "invalid_value"},
		"bad duration":           {with(t, "approve_by: 12h", "approve_by: soon"), "invalid_value"},
		"zero duration":          {with(t, "approve_by: 12h", "approve_by: 0s"), "invalid_value"},
		"unknown connector":      {with(t, "connector: crm\n", "connector: erp\n"), "unknown_connector"},
		"unknown role":           {with(t, "roles: [support-lead]", "roles: [nobody]"), "unknown_role"},
		"unknown notify":         {with(t, "notify: [approvers]", "notify: [mail]"), "unknown_channel"},
		"unknown alert":          {with(t, "alerts: [pager]", "alerts: [mail]"), "unknown_channel"},
		"unknown after":          {with(t, "after: [reply]", "after: [answer]"), "unknown_effect"},
		"own after":              {with(t, "after: [reply]", "after: [note]"), "cycle"},
		"no contract file":       {with(t, "contract: schemas/ticket-reply.json", "contract: schemas/other.json"), "missing_file"},
		"contract outside":       {with(t, "contract: schemas/ticket-reply.json", "contract: ../ticket-reply.json"), "invalid_value"},
		"no gate roles":          {with(t, "      roles: [support-lead]\n", ""), "missing"},
		"nobody":                 {with(t, "roles: [support-lead]", "roles: [empty]", "  operator: {", "  empty: {}\n  operator: {"), "nobody_eligible"},
		"not an address":         {with(t, "ops@acme.example", "ops"), "invalid_value"},
		"unknown class":          {with(t, "consequence: crm_change", "consequence: harmless"), "unknown_consequence"},
		"syntax in expression":   {with(t, "draft.label != 'spam'", "draft.label !="), "expression"},
		"undeclared variable":    {with(t, "draft.label != 'spam'", "output.label != 'spam'"), "expression"},
		"type of when":           {with(t, "draft.label != 'spam'", "'spam'"), "expression"},
		"type of for_each":       {with(t, "for_each: event.watchers", "for_each: \"'a'\""), "expression"},
		"mistyped call":          {with(t, "draft.label != 'spam'", "size(1) > 0"), "expression"},
		"growing replace":        {with(t, "${draft.summary}", "${draft.summary.replace('a', event.b)}"), "expression"},
		"growing join":           {with(t, "${draft.summary}", "${draft.list.join(event.sep)}"), "expression"},
		"unknown run field":      {with(t, "draft.label != 'spam'", "run.name != 'spam'"), "expression"},
		"unknown effect field":   {connector(`url: "https://x.example/${effect.recipient}"`), "expression"},
		"event in connector":     {connector(`url: "https://x.example/${event.id}"`), "expression"},
		"effect in workflow":     {with(t, "${draft.summary}", "${effect.target}"), "expression"},
		"expression in channel":  {with(t, "https://alerts.acme.example/hook", "https://alerts.acme.example/${event.id}"), "expression"},
		"open expression":        {with(t, "${draft.summary}", "${draft.summary"), "expression"},
		"expression as name":     {with(t, `{total: "${w.total}"}`, `{"${w.email}": 1}`), "expression"},
		"item outside":           {with(t, "${draft.summary}", "${w.email}"), "expression"},
		"secret in payload":      {with(t, "${draft.summary}", "${env:CRM_TOKEN}"), "secret_not_allowed"},
		"secret in target":       {with(t, "${event.customer.id}", "${file:/etc/passwd}"), "secret_not_allowed"},
		"own secret":             {with(t, "${env:CRM_TOKEN}", "${env:HOLDPOINT_DB}"), "secret_not_allowed"},
		"bad secret name":        {with(t, "${env:CRM_TOKEN}", "${env:CRM TOKEN}"), "invalid_value"},
		"relative secret file":   {with(t, "${file:/run/secrets/smtp}", "${file:smtp}"), "invalid_value"},
		"literal password":       {with(t, "${file:/run/secrets/smtp}", "hunter2"), "literal_secret"},
		"no webhook secret":      {with(t, `secret: "${env:PAGER_SECRET}"}`, `personal: true}`), "missing"},
		"literal webhook secret": {with(t, `hook", secret: "${env:PAGER_SECRET}"`, `hook", secret: whsec_abc`), "literal_secret"},
		"short keys":             {with(t, "max_length: 64", "max_length: 15"), "invalid_value"},
		"no key life":            {with(t, ", lifetime: 24h", ""), "missing"},
		"no max_lag":             {with(t, "      max_lag: 2m\n", ""), "missing"},
		"key header taken":       {with(t, "X-Run:", "Idempotency-Key:"), "duplicate_key"},
		"header name":            {with(t, "X-Run:", `"X Run":`), "invalid_header"},
		"header of transport":    {with(t, "X-Run:", "Transfer-Encoding:"), "invalid_header"},
		"host header":            {with(t, "X-Run:", "host:"), "invalid_header"},
		"header line break":      {with(t, `"${effect.run_id}"`, `"a\r\nb"`), "invalid_value"},
		"read method":            {with(t, "method: POST", "method: GET"), "invalid_value"},
		"url scheme":             {connector(`url: "ftp://x.example/"`), "invalid_url"},
		"url host":               {connector(`url: "https://${effect.target}/x"`), "invalid_url"},
		"url host tail":          {connector(`url: "https://x.example${effect.target}/x"`), "invalid_url"},
		"url port":               {connector(`url: "https://x.example:${effect.target}/x"`), "invalid_url"},
		"url whole":              {connector(`url: "${effect.target}"`), "invalid_url"},
		"url secret":             {connector(`url: "${env:URL}"`), "invalid_url"},
		"url user":               {connector(`url: "https://a:b@x.example/"`), "invalid_url"},
		"url fragment":           {connector(`url: "https://x.example/#${effect.target}"`), "invalid_url"},
		"url dots":               {connector(`url: "https://x.example/a/%2e%2e/b"`), "invalid_url"},
		"url cut escape":         {connector(`url: "https://x.example/%2${effect.target}"`), "invalid_url"},
		"url backslash":          {connector(`url: 'https://x.example\${effect.target}'`), "invalid_url"},
		"no url":                 {connector(`timeout: 5s`), "missing"},
		"success":                {connector(`url: "https://x.example/", success: [200, 302]`), "invalid_value"},
		"smtp without tls":       {with(t, "smtp://mail.acme.example:587", "smtp://mail.acme.example:587?tls=none"), "invalid_url"},
		"smtp parameter":         {with(t, "smtp://mail.acme.example:587", "smtp://127.0.0.1:25?tls=skip"), "invalid_url"},
		"smtp user in url":       {with(t, "smtp://mail.acme.example:587", "smtp://a:b@mail.acme.example:587"), "invalid_url"},
		"half of a login":        {with(t, "username: holdpoint, ", ""), "missing"},
		"sender":                 {with(t, "Holdpoint <holdpoint@acme.example>", "Holdpoint"), "invalid_value"},
		"link for a change":      {with(t, "assurance: login", "assurance: link"), "floor"},
		"expiry approves":        {with(t, "on_expiry: reject", "on_expiry: approve"), "invalid_value"},
		"lease over cap":         {with(t, "initial: 5m, cap: 20m", "initial: 30m, cap: 20m"), "invalid_value"},
		"initiator":              {with(t, "initiator: /created_by", "initiator: created_by"), "invalid_value"},
		"pointer":                {with(t, "/delivered_at", "/a~2"), "invalid_value"},
		"slot_key alone":         {with(t, "        after: [reply]\n", "        slot_key: a\n"), "invalid_value"},
		"constant slot_key":      {with(t, `slot_key: "${w.email}"`, `slot_key: "${event.id}"`), "invalid_value"},
		"reserved as":            {with(t, "as: w", "as: event"), "invalid_value"},
		"octal":                  {with(t, "{total: \"${w.total}\"}", "{total: 0o17}"), "invalid_value"},
		"anchor":                 {with(t, "approve_by: 12h", "approve_by: &a 12h"), "syntax"},
		"tag":                    {with(t, "approve_by: 12h", "approve_by: !!str 12h"), "syntax"},
		"not yaml":               {"version: [1", "syntax"},
		"two documents":          {sample + "---\nversion: 1\n", "syntax"},
		"empty":                  {"", "missing"},
		"a list":                 {"[1]", "invalid_value"},
	} {
		t.Run(name, func(t *testing.T) {
			p, findings := Parse([]byte(test.doc), sampleFiles, Options{})
			require.Nil(t, p)
			var codes []string
			for _, f := range findings {
				if f.Severity == SeverityError {
					codes = append(codes, f.Code)
				}
				require.Positive(t, f.Line)
				require.Positive(t, f.Column)
				require.NotEmpty(t, f.Message)
			}
			require.Contains(t, codes, test.code, "%v", findings)
		})
	}
}

func TestFindingsPointIntoTheDocument(t *testing.T) {
	doc := with(t, "quorum: 1", "quorums: 1", "connector: crm\n", "connector: erp\n")
	_, findings := Parse([]byte(doc), sampleFiles, Options{})
	require.Len(t, findings, 2)
	for i, word := range []string{"erp", "quorums"} {
		line := strings.Split(doc, "\n")[findings[i].Line-1]
		require.True(t, strings.HasPrefix(line[findings[i].Column-1:], word), findings[i])
	}
	_, findings = Parse([]byte("version: 1\nroles:\n\t- x\n"), nil, Options{})
	require.Equal(t, "syntax", findings[0].Code)
	require.Contains(t, []int{2, 3}, findings[0].Line)
}

func TestWarnings(t *testing.T) {
	for doc, code := range map[string]string{
		with(t, "roles: [support-lead]", "roles: [operator]"):                                "few_people",
		with(t, "https://crm.acme.example/api/plain", "http://crm.acme.example/api/plain"):   "insecure",
		with(t, `authorization: "Bearer ${env:CRM_TOKEN}"`, `authorization: "Bearer abcde"`): "literal_secret",
	} {
		p, findings := Parse([]byte(doc), sampleFiles, Options{})
		require.NotNil(t, p)
		require.Len(t, findings, 1)
		require.Equal(t, code, findings[0].Code)
		require.Equal(t, SeverityWarning, findings[0].Severity)
	}
	p, findings := Parse([]byte(with(t, "https://crm.acme.example/api/plain", "http://127.0.0.1:1/api/plain")), sampleFiles, Options{})
	require.NotNil(t, p)
	require.Empty(t, findings)
}

func TestFloors(t *testing.T) {
	doc := func(class, assurance, notify, initiator string) string {
		return fmt.Sprintf(`version: 1
redelivery_window: 7d
roles: {lead: {users: [a@x.example, b@x.example]}}
connectors: {c: {kind: http, url: "https://x.example/"}}
channels:
  mail: {kind: smtp, url: "smtp://127.0.0.1:25?tls=none", from: a@x.example}
  own: {kind: webhook, url: "https://x.example/", secret: "${env:S}", personal: true}
  room: {kind: webhook, url: "https://x.example/", secret: "${env:S}"}
workflows:
  w:
    contract: schemas/ticket-reply.json
    %s
    effects: {e: {type: note, connector: c, consequence: %s, target: x}}
    gate: {roles: [lead], assurance: %s, notify: [%s]}
`, initiator, class, assurance, notify)
	}
	for _, test := range []struct {
		class, assurance, notify, initiator, code string
	}{
		{"internal_note", "link", "mail", "", ""},
		{"internal_note", "link", "own", "", ""},
		{"internal_note", "link", "mail, own", "", ""},
		{"internal_note", "link", "room", "", "link_channel"},
		{"internal_note", "link", "mail, room", "", "link_channel"},
		{"internal_note", "link", "", "", "link_channel"},
		{"internal_note", "login", "room", "", ""},
		{"crm_change", "link", "mail", "", "floor"},
		{"crm_change", "login", "", "", ""},
		{"customer_message", "link", "mail", "", "floor"},
		{"customer_message", "login", "", "", ""},
		{"account_change", "link", "mail", "initiator: caller", "floor"},
		{"account_change", "login", "", "", "initiator_required"},
		{"account_change", "login", "", "initiator: caller", ""},
		{"refund", "login", "", "", "initiator_required"},
		{"refund", "login", "", "initiator: /by", ""},
		{"refund", "link", "mail", "initiator: /by", "floor"},
		{"operational_finance", "login", "", "", "initiator_required"},
		{"operational_finance", "login", "", "initiator: /by", ""},
	} {
		t.Run(fmt.Sprintf("%s %s %s %s", test.class, test.assurance, test.notify, test.initiator), func(t *testing.T) {
			p, findings := Parse([]byte(doc(test.class, test.assurance, test.notify, test.initiator)), sampleFiles, Options{})
			if test.code == "" {
				require.Empty(t, findings)
				require.NotNil(t, p)
				return
			}
			require.Nil(t, p)
			require.Len(t, findings, 1)
			require.Equal(t, test.code, findings[0].Code)
		})
	}
}

func TestContractCheckIsInjected(t *testing.T) {
	var asked string
	_, findings := Parse([]byte(sample), sampleFiles, Options{CheckContract: func(name string, schema []byte) error {
		asked = name + string(schema)
		return errors.New("close every object")
	}})
	require.Equal(t, `schemas/ticket-reply.json{"type": "object"}`, asked)
	require.Len(t, findings, 1)
	require.Equal(t, "invalid_contract", findings[0].Code)
	require.Contains(t, findings[0].Message, "close every object")
	for _, schema := range []string{"", "[]", "null", "{"} {
		_, findings = Parse([]byte(sample), map[string][]byte{"schemas/ticket-reply.json": []byte(schema)}, Options{})
		require.Len(t, findings, 1)
		require.Equal(t, "invalid_contract", findings[0].Code)
	}
}

func TestCycles(t *testing.T) {
	_, findings := Parse([]byte(with(t, "payload: {subject:", "after: [tell]\n        payload: {subject:")), sampleFiles, Options{})
	require.Len(t, findings, 3)
	for _, f := range findings {
		require.Equal(t, "cycle", f.Code)
	}
}

func TestFilesAndHash(t *testing.T) {
	doc := []byte(sample)
	names, err := Files(doc)
	require.NoError(t, err)
	require.Equal(t, []string{"schemas/ticket-reply.json"}, names)
	for _, bad := range []string{"/etc/x", "../x", "a/../../x", "a//b", "./a", `a\b`, "C:x", ".", ".."} {
		_, err := Files([]byte("workflows: {w: {contract: '" + bad + "'}}"))
		require.Error(t, err, bad)
	}

	hash := Hash(doc, sampleFiles)
	require.Len(t, hash, 64)
	more := map[string][]byte{"schemas/ticket-reply.json": sampleFiles["schemas/ticket-reply.json"], "other": []byte("x")}
	require.Equal(t, hash, Hash(doc, more), "files that the document does not name change nothing")
	require.NotEqual(t, hash, Hash(doc, nil))
	require.NotEqual(t, hash, Hash(doc, map[string][]byte{"schemas/ticket-reply.json": nil}))
	require.NotEqual(t, Hash(doc, nil), Hash(doc, map[string][]byte{"schemas/ticket-reply.json": nil}))
	require.NotEqual(t, hash, Hash(append(doc, '\n'), sampleFiles))
	two := []byte("workflows: {a: {contract: a}, b: {contract: b}}")
	require.NotEqual(t, Hash(two, map[string][]byte{"a": []byte("xb"), "b": nil}), Hash(two, map[string][]byte{"a": []byte("x"), "b": []byte("b")}))
}

func TestParseDuration(t *testing.T) {
	for in, want := range map[string]time.Duration{"90s": 90 * time.Second, "30d": 720 * time.Hour, "1d12h": 36 * time.Hour, "1h30m": 90 * time.Minute} {
		got, err := ParseDuration(in)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, in := range []string{"", "0", "0d", "d", "-1h", "-1d", "1.5d", "5", "1h1d", "99999999999d", "1d-1h", "4000d", "100000h", "1dd", "1d1d"} {
		_, err := ParseDuration(in)
		require.Error(t, err, in)
	}
}
