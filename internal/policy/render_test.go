package policy

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/holdpoint/holdpoint"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var runInfo = RunInfo{ID: "r1", Key: "k1", Workflow: "w", Tenant: "default"}

// one makes a workflow of the given effects over connector c.
func one(t testing.TB, effects string) (*Policy, *Workflow) {
	t.Helper()
	p := mustParse(t, `version: 1
redelivery_window: 7d
roles: {lead: {users: [a@x.example, b@x.example]}}
connectors: {c: {kind: http, url: "https://x.example/"}}
workflows:
  w:
    contract: schemas/ticket-reply.json
    gate: {roles: [lead]}
    effects:
`+effects)
	return p, p.Workflows["w"]
}

func payloadOf(t testing.TB, template, event, draft string) (string, error) {
	t.Helper()
	p, w := one(t, "      e: {type: t, connector: c, consequence: internal_note, target: x, payload: {v: "+template+"}}\n")
	all, err := w.Render(p, Input{Event: []byte(event), Draft: []byte(draft), Run: runInfo})
	if err != nil {
		return "", err
	}
	require.Len(t, all, 1)
	var v struct{ V json.RawMessage }
	require.NoError(t, json.Unmarshal(all[0].Payload, &v))
	return string(v.V), nil
}

func requireCode(t testing.TB, err error, code holdpoint.Code) {
	t.Helper()
	var e *holdpoint.Error
	require.True(t, errors.As(err, &e), "%v", err)
	require.Equal(t, code, e.Code)
}

func TestRenderSample(t *testing.T) {
	p := mustParse(t, sample)
	all, err := p.Workflows["ticket-reply"].Render(p, Input{
		Event: []byte(`{"customer":{"email":"jane@acme.example","id":7},"subject":"Hi \"there\"","amount":10.50,
			"watchers":[{"email":"a@x.example","total":9007199254740993},{"email":"b@x.example","total":1e3}]}`),
		Draft: []byte(`{"reply":"Yes","summary":"s","label":"faq"}`),
		Run:   runInfo,
	})
	require.NoError(t, err)
	require.Equal(t, []Rendered{
		{Slot: "reply", Name: "reply", Type: "email.reply", Connector: "plain", ConnectorVersion: p.Connectors["plain"].Version, Consequence: "customer_message", Target: "jane@acme.example",
			Payload: []byte(`{"subject":"Re: Hi \"there\"","text":"Yes","amount":10.50}`)},
		{Slot: "note", Name: "note", Type: "crm.note", Connector: "crm", ConnectorVersion: p.Connectors["crm"].Version, Consequence: "crm_change", Target: "7",
			Payload: []byte(`{"text":"s"}`), After: []string{"reply"}, Order: 1, Reversible: p.Workflows["ticket-reply"].Effects[1].Reversible},
		{Slot: "tell[a@x.example]", Name: "tell", Type: "email.tell", Connector: "plain", ConnectorVersion: p.Connectors["plain"].Version, Consequence: "customer_message", Target: "a@x.example",
			Payload: []byte(`{"total":9007199254740993}`), After: []string{"note"}, Order: 2},
		{Slot: "tell[b@x.example]", Name: "tell", Type: "email.tell", Connector: "plain", ConnectorVersion: p.Connectors["plain"].Version, Consequence: "customer_message", Target: "b@x.example",
			Payload: []byte(`{"total":1e3}`), After: []string{"note"}, Order: 3},
	}, all)
}

func TestWhenDropsAnEffectAndWhatWaitsForItNoLongerWaits(t *testing.T) {
	p := mustParse(t, sample)
	all, err := p.Workflows["ticket-reply"].Render(p, Input{
		Event: []byte(`{"customer":{"email":"j@x.example","id":7},"subject":"s","amount":1,"watchers":[{"email":"a@x.example","total":1}]}`),
		Draft: []byte(`{"reply":"Yes","summary":"s","label":"spam"}`), Run: runInfo,
	})
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, "tell[a@x.example]", all[1].Slot)
	require.Equal(t, 1, all[1].Order)
	require.Empty(t, all[1].After)
}

func TestFanOutWaits(t *testing.T) {
	p, w := one(t, `      a: {type: t, connector: c, consequence: internal_note, for_each: event.l, slot_key: "${item}", target: "${item}", when: "item != 'b'"}
      z: {type: t, connector: c, consequence: internal_note, target: x, after: [a]}
`)
	all, err := w.Render(p, Input{Event: []byte(`{"l":["a","b","c"]}`), Run: runInfo})
	require.NoError(t, err)
	require.Equal(t, []string{"a[a]", "a[c]"}, all[2].After)
	all, err = w.Render(p, Input{Event: []byte(`{"l":[]}`), Run: runInfo})
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Empty(t, all[0].After)

	for _, event := range []string{`{"l":["a","a"]}`, `{"l":{"a":1}}`, `{"l":"a"}`, `{"l":null}`, `{}`, `{"l":[""]}`, `{"l":["a\nb"]}`, `{"l":[null]}`, `{"l":[{}]}`, `{"l":[` + strings.Repeat("1,", 1000) + `1]}`} {
		_, err = w.Render(p, Input{Event: []byte(event), Run: runInfo})
		requireCode(t, err, holdpoint.CodeRender)
	}
}

func TestRenderValues(t *testing.T) {
	const event = `{"s":"x","n":10.50,"i":9007199254740993,"u":123456789012345678901234567890,"e":1e3,"z":-0,"f":2.0,"t":true,"no":null,
		"o":{"b":1.10,"a":[1.0,{"c":0.10}]},"l":[10.50,2,3.00],"q":"a\"b\\c<&>","huge":1e400}`
	for template, want := range map[string]string{
		`"${event.s}"`:                                         `"x"`,
		`"${event.n}"`:                                         `10.50`,
		`"${event.i}"`:                                         `9007199254740993`,
		`"${event.u}"`:                                         `123456789012345678901234567890`,
		`"${event.e}"`:                                         `1e3`,
		`"${event.z}"`:                                         `-0`,
		`"${event.huge}"`:                                      `1e400`,
		`"${event.t}"`:                                         `true`,
		`"${event.no}"`:                                        `null`,
		`"${event.o}"`:                                         `{"a":[1.0,{"c":0.10}],"b":1.10}`,
		`"${[event.n, event.o.b]}"`:                            `[10.50,1.10]`,
		`"${{'a': event.n}}"`:                                  `{"a":10.50}`,
		`"${event.t ? event.n : 0}"`:                           `10.50`,
		`"${event.l.map(x, x)}"`:                               `[10.50,2,3.00]`,
		`"${event.l.filter(x, x > 2.5)}"`:                      `[10.50,3.00]`,
		`"${event.l + event.l}"`:                               `[10.50,2,3.00,10.50,2,3.00]`,
		`"${event.l[0]}"`:                                      `10.50`,
		`"${event.o['b']}"`:                                    `1.10`,
		`"${event.l[event.l[1]]}"`:                             `3.00`,
		`"a ${event.n} b ${event.u}"`:                          `"a 10.50 b 123456789012345678901234567890"`,
		`"${string(event.n)}"`:                                 `"10.50"`,
		`"${'v' + string(event.n)}"`:                           `"v10.50"`,
		`"${event.n == 10.5}"`:                                 `true`,
		`"${10.5 == event.n}"`:                                 `true`,
		`"${event.n in [10.5]}"`:                               `true`,
		`"${[event.n] == [10.5]}"`:                             `true`,
		`"${[10.5] == [event.n]}"`:                             `true`,
		`"${{'a': 10.5} == {'a': event.n}}"`:                   `true`,
		`"${event.o == {'a': [1, {'c': 0.1}], 'b': 1.1}}"`:     `true`,
		`"${1 < event.n && event.n < 11}"`:                     `true`,
		`"${event.n * 2.0}"`:                                   `21`,
		`"${event.f + 1.5}"`:                                   `3.5`,
		`"${-event.n}"`:                                        `-10.5`,
		`"${event.i + 1}"`:                                     `9007199254740994`,
		`"${event.i == 9007199254740993}"`:                     `true`,
		`"${event.i == 9007199254740992}"`:                     `false`,
		`"${event.l.exists(x, x == 3)}"`:                       `true`,
		`"${event.l.all(x, x >= 2)}"`:                          `true`,
		`"${event.l.exists_one(x, x == 2)}"`:                   `true`,
		`"${dyn(event.n)}"`:                                    `10.50`,
		`"${int(event.f)}"`:                                    `2`,
		`"${size(event.l)}"`:                                   `3`,
		`"${type(event.n) == double}"`:                         `true`,
		`"${has(event.nope) ? 1 : 2}"`:                         `2`,
		`"${{event.l[1]: 'x'}[2]}"`:                            `"x"`,
		`"${event.s.upperAscii()}"`:                            `"X"`,
		`"${event.s.replace('x', 'yy')}"`:                      `"yy"`,
		`"${['a', event.s].join('-')}"`:                        `"a-x"`,
		`"${event.q}"`:                                         `"a\"b\\c<&>"`,
		`"${'}' + event.s + '{'}"`:                             `"}x{"`,
		`"${'$' + '{event.s}'}"`:                               `"${event.s}"`,
		`"${{'a': {'b': '}'}}.a.b}"`:                           `"}"`,
		`"${run.id}/${run.key}/${run.workflow}/${run.tenant}"`: `"r1/k1/w/default"`,
		`"${draft.a}"`:                                         `"from the draft"`,
		`10.50`:                                                `10.50`,
		`[1, "x", null, true]`:                                 `[1,"x",null,true]`,
		`""`:                                                   `""`,
		`2020-01-01`:                                           `"2020-01-01"`,
		`yes`:                                                  `"yes"`,
		`"$5 {x} $${event.s}"`:                                 `"$5 {x} $x"`,
	} {
		got, err := payloadOf(t, template, event, `{"a":"from the draft"}`)
		require.NoError(t, err, template)
		require.Equal(t, want, got, template)
	}
}

func TestBlockScalars(t *testing.T) {
	p, w := one(t, `      e:
        type: t
        connector: c
        consequence: internal_note
        target: x
        when: >
          event.s == 'x'
          && true
        payload:
          text: |
            Dear ${event.s},
            bye
`)
	all, err := w.Render(p, Input{Event: []byte(`{"s":"x"}`), Run: runInfo})
	require.NoError(t, err)
	require.Equal(t, `{"text":"Dear x,\nbye\n"}`, string(all[0].Payload))
}

func TestRenderRefuses(t *testing.T) {
	for _, template := range []string{
		`"${event.missing}"`, `"x ${event.no}"`, `"x ${event.o}"`, `"x ${event.l}"`, `"${event.s + 1}"`, `"${event.n / 0.0}"`,
		`"${event.l[99]}"`, `"${int(event.s)}"`, `"${b'x'}"`, `"${{1: 2}}"`, `"${event.n * 2}"`, `"${type(1)}"`, `"${1/0}"`,
	} {
		_, err := payloadOf(t, template, `{"s":"secret-content","n":1.5,"o":{},"l":[1],"no":null}`, `{}`)
		requireCode(t, err, holdpoint.CodeRender)
		require.NotContains(t, err.Error(), "secret-content", "no content in errors")
		require.Contains(t, err.Error(), `effect "e", payload`)
	}
	p, w := one(t, `      e: {type: t, connector: c, consequence: internal_note, target: "${event.to}"}`+"\n")
	for _, event := range []string{`{"to":""}`, `{"to":"a\nb"}`, `{"to":"a\u0000"}`, `{"to":"a\u0085b"}`, `{"to":null}`, `{"to":[]}`, `{}`, `[]`, `{"to":"` + strings.Repeat("x", 1025) + `"}`} {
		_, err := w.Render(p, Input{Event: []byte(event), Run: runInfo})
		requireCode(t, err, holdpoint.CodeRender)
	}
	_, err := w.Render(p, Input{Event: []byte(`{`), Run: runInfo})
	requireCode(t, err, holdpoint.CodeInvalidJSON)
	_, err = w.Render(p, Input{Event: []byte(`{} {}`), Run: runInfo})
	requireCode(t, err, holdpoint.CodeInvalidJSON)

	p, w = one(t, `      e: {type: t, connector: c, consequence: internal_note, target: x, when: "event.w"}`+"\n")
	for _, event := range []string{`{"w":"true"}`, `{"w":1}`, `{"w":null}`, `{}`} {
		_, err = w.Render(p, Input{Event: []byte(event), Run: runInfo})
		requireCode(t, err, holdpoint.CodeRender)
	}
}

func TestExpensiveExpressionsEnd(t *testing.T) {
	list := "[" + strings.Repeat("1,", 999) + "1]"
	_, err := payloadOf(t, `"${event.l.map(a, event.l.map(b, event.l.map(c, a + b + c)))}"`, `{"l":`+list+`}`, `{}`)
	requireCode(t, err, holdpoint.CodeRender)
}

// TestContentIsNeverScannedAgain holds that what looks like a template in content stays text.
func TestContentIsNeverScannedAgain(t *testing.T) {
	for _, hostile := range []string{"${draft.secret}", "${env:CRM_TOKEN}", "${file:/etc/passwd}", "$", "${", "}", "${1+1}"} {
		event, err := json.Marshal(map[string]string{"s": hostile})
		require.NoError(t, err)
		want, err := json.Marshal(hostile)
		require.NoError(t, err)
		got, err := payloadOf(t, `"${event.s}"`, string(event), `{"secret":"x"}`)
		require.NoError(t, err)
		require.JSONEq(t, string(want), got)
		got, err = payloadOf(t, `"a${event.s}"`, string(event), `{"secret":"x"}`)
		require.NoError(t, err)
		var s string
		require.NoError(t, json.Unmarshal([]byte(got), &s))
		require.Equal(t, "a"+hostile, s)
	}
}

// TestNumbersKeepTheirLexeme holds it for any JSON number anywhere in a document.
func TestNumbersKeepTheirLexeme(t *testing.T) {
	p, w := one(t, `      e: {type: t, connector: c, consequence: internal_note, target: x, payload: {n: "${event.n}", o: "${event.o}", l: "${event.l.map(x, x)}", s: "=${event.n}"}}`+"\n")
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.StringMatching(`-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,10})?([eE][+-]?[0-9]{1,3})?`).Draw(t, "n")
		all, err := w.Render(p, Input{Event: []byte(`{"n":` + n + `,"o":{"a":[{"b":` + n + `}]},"l":[` + n + `]}`), Run: runInfo})
		require.NoError(t, err)
		require.Equal(t, `{"n":`+n+`,"o":{"a":[{"b":`+n+`}]},"l":[`+n+`],"s":"=`+n+`"}`, string(all[0].Payload))
	})
}

// TestAnyTextStaysOneJSONString holds that no content opens a payload.
func TestAnyTextStaysOneJSONString(t *testing.T) {
	p, w := one(t, `      e: {type: t, connector: c, consequence: internal_note, target: x, payload: {a: "${event.s}", b: "<${event.s}>", c: 1}}`+"\n")
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		event, err := json.Marshal(map[string]string{"s": s})
		require.NoError(t, err)
		all, err := w.Render(p, Input{Event: event, Run: runInfo})
		require.NoError(t, err)
		var got map[string]any
		require.NoError(t, json.Unmarshal(all[0].Payload, &got))
		require.Equal(t, map[string]any{"a": s, "b": "<" + s + ">", "c": 1.0}, got)
	})
}
