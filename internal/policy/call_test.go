package policy

import (
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/holdpoint/holdpoint"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type fakeSecrets map[string]string

func (s fakeSecrets) Env(name string) (string, bool) { v, ok := s["env:"+name]; return v, ok }

func (s fakeSecrets) File(path string) ([]byte, error) {
	if v, ok := s["file:"+path]; ok {
		return []byte(v), nil
	}
	return nil, errors.New("no such file")
}

// connectorWith makes a connector from its keys in flow style.
func connectorWith(t testing.TB, keys string) *Connector {
	t.Helper()
	return mustParse(t, "version: 1\nredelivery_window: 7d\nconnectors: {c: {kind: http, "+keys+"}}\n").Connectors["c"]
}

var noteVars = Vars{Key: "abcd", Reference: "ref-1", Target: "jane", Payload: []byte(`{"text":"hi","amount":10.50}`), Slot: "note", Type: "crm.note", RunID: "r1"}

func TestCall(t *testing.T) {
	c := mustParse(t, sample).Connectors["crm"]
	call, err := c.Call(noteVars, fakeSecrets{"env:CRM_TOKEN": "s3cret"})
	require.NoError(t, err)
	require.Equal(t, HTTPCall{
		Method: "POST", URL: "https://crm.acme.example/api/contacts/jane/notes",
		Header: map[string]string{"Authorization": "Bearer s3cret", "X-Run": "r1", "Idempotency-Key": "abcd", "Content-Type": "application/json"},
		Body:   []byte(`{"text":"hi","amount":10.50,"external_ref":"ref-1","fixed":1.50,"on":true,"none":null}`),
	}, call)

	look, err := c.LookupCall(noteVars, fakeSecrets{"env:CRM_TOKEN": "s3cret"})
	require.NoError(t, err)
	require.Equal(t, HTTPCall{
		Method: "GET", URL: "https://crm.acme.example/api/notes?external_ref=ref-1",
		Header: map[string]string{"Authorization": "Bearer s3cret", "X-Run": "r1"},
	}, look)
}

func TestLookupHeadersReplaceTheConnectors(t *testing.T) {
	c := connectorWith(t, `url: "https://x.example/", headers: {X-A: a}, lookup: {url: "https://y.example/", headers: {X-B: b}, found: "true", absent: "false", max_lag: 1s}`)
	look, err := c.LookupCall(noteVars, nil)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"X-B": "b"}, look.Header)
	c = connectorWith(t, `url: "https://x.example/", method: DELETE`)
	_, err = c.LookupCall(noteVars, nil)
	requireCode(t, err, holdpoint.CodeNotAllowedNow)
	call, err := c.Call(noteVars, nil)
	require.NoError(t, err)
	require.Empty(t, call.Body)
	require.Empty(t, call.Header)
}

func TestMissingSecretIsNamedAndNeverShown(t *testing.T) {
	c := mustParse(t, sample).Connectors["crm"]
	_, err := c.Call(noteVars, fakeSecrets{})
	requireCode(t, err, holdpoint.CodeUnavailable)
	require.Contains(t, err.Error(), "env:CRM_TOKEN")
	_, err = c.LookupCall(noteVars, nil)
	requireCode(t, err, holdpoint.CodeUnavailable)
	require.Equal(t, []string{"env:CRM_TOKEN"}, c.MissingSecrets(fakeSecrets{"env:CRM_TOKEN": ""}))
	require.Empty(t, c.MissingSecrets(fakeSecrets{"env:CRM_TOKEN": "x"}))

	_, err = c.Call(noteVars, fakeSecrets{"env:CRM_TOKEN": "s3cret\r\nX-Evil: 1"})
	requireCode(t, err, holdpoint.CodeRender)
	require.NotContains(t, err.Error(), "s3cret")

	c = connectorWith(t, `url: "https://x.example/${env:A}?k=${file:/b}", headers: {X-C: "${file:/c}"}, body: "${env:D}"`)
	require.Equal(t, []string{"env:A", "env:D", "file:/b", "file:/c"}, c.MissingSecrets(nil))
	call, err := c.Call(noteVars, fakeSecrets{"env:A": "a/b", "file:/b": "x&y\n", "file:/c": "c\r\n", "env:D": `"d`})
	require.NoError(t, err)
	require.Equal(t, "https://x.example/a%2Fb?k=x%26y", call.URL)
	require.Equal(t, "c", call.Header["X-C"])
	require.Equal(t, `"\"d"`, string(call.Body))
}

func TestHostileValuesStayInTheirURLPlace(t *testing.T) {
	c := connectorWith(t, `url: "https://x.example/a/${effect.target}/b?q=${effect.payload.q}&r=1"`)
	for target, want := range map[string]string{
		"jane":                  "jane",
		"../../admin":           "..%2F..%2Fadmin",
		"a/b?c#d":               "a%2Fb%3Fc%23d",
		`a\b`:                   "a%5Cb",
		"%2e%2e":                "%252e%252e",
		"@evil.example":         "%40evil.example",
		"a b\r\n":               "a%20b%0D%0A",
		"ä":                     "%C3%A4",
		"a;b,c=d&e+f":           "a%3Bb%2Cc%3Dd%26e%2Bf",
		"...":                   "...",
		"https://evil.example/": "https%3A%2F%2Fevil.example%2F",
	} {
		v := noteVars
		v.Target, v.Payload = target, []byte(`{"q":"1&r=2#x ?"}`)
		call, err := c.Call(v, nil)
		require.NoError(t, err, target)
		require.Equal(t, "https://x.example/a/"+want+"/b?q=1%26r%3D2%23x%20%3F&r=1", call.URL)
	}
	for _, target := range []string{"", ".", ".."} {
		v := noteVars
		v.Target = target
		v.Payload = []byte(`{"q":"1"}`)
		_, err := c.Call(v, nil)
		requireCode(t, err, holdpoint.CodeRender)
	}
	for _, payload := range []string{`{"q":null}`, `{"q":{}}`, `{}`} {
		v := noteVars
		v.Payload = []byte(payload)
		_, err := c.Call(v, nil)
		requireCode(t, err, holdpoint.CodeRender)
	}
	v := noteVars
	v.Payload = []byte(`{"q":""}`)
	call, err := c.Call(v, nil)
	require.NoError(t, err, "an empty query value is a value")
	require.True(t, strings.HasSuffix(call.URL, "?q=&r=1"))
}

func TestAnyTargetKeepsThePathsShape(t *testing.T) {
	c := connectorWith(t, `url: "https://x.example/a/${effect.target}/b?q=${effect.target}&r=1"`)
	rapid.Check(t, func(t *rapid.T) {
		v := noteVars
		v.Target = rapid.String().Draw(t, "target")
		call, err := c.Call(v, nil)
		if v.Target == "" || v.Target == "." || v.Target == ".." {
			require.Error(t, err)
			return
		}
		require.NoError(t, err)
		u, err := url.Parse(call.URL)
		require.NoError(t, err)
		require.Equal(t, "x.example", u.Host)
		require.Empty(t, u.Fragment)
		segments := strings.Split(u.EscapedPath(), "/")
		require.Len(t, segments, 4)
		inner, err := url.PathUnescape(segments[2])
		require.NoError(t, err)
		require.Equal(t, v.Target, inner)
		q, err := url.ParseQuery(u.RawQuery)
		require.NoError(t, err)
		require.Equal(t, url.Values{"q": {v.Target}, "r": {"1"}}, q)
	})
}

func TestHeaderValuesRefuseControlCharacters(t *testing.T) {
	c := connectorWith(t, `url: "https://x.example/", headers: {X-A: "v=${effect.payload.a}"}`)
	for _, bad := range []string{"a\r\nX-Evil: 1", "a\n", "\x00", "a\tb", "\x7f", "\u0085"} {
		payload, err := json.Marshal(map[string]string{"a": bad})
		require.NoError(t, err)
		v := noteVars
		v.Payload = payload
		_, err = c.Call(v, nil)
		requireCode(t, err, holdpoint.CodeRender)
	}
	v := noteVars
	v.Payload = []byte(`{"a":"x: y"}`)
	call, err := c.Call(v, nil)
	require.NoError(t, err)
	require.Equal(t, "v=x: y", call.Header["X-A"])
}

func TestKeyFitsItsHeader(t *testing.T) {
	c := connectorWith(t, `url: "https://x.example/", idempotency: {header: Idempotency-Key, max_length: 16, lifetime: 1h}`)
	for _, key := range []string{"", strings.Repeat("a", 17), "a b", "a\n", "ä"} {
		v := noteVars
		v.Key = key
		_, err := c.Call(v, nil)
		requireCode(t, err, holdpoint.CodeRender)
	}
}

func TestWireHash(t *testing.T) {
	c := mustParse(t, sample).Connectors["crm"]
	base, err := c.WireHash(noteVars)
	require.NoError(t, err)
	require.Len(t, base, 64)
	again, err := mustParse(t, sample).Connectors["crm"].WireHash(noteVars)
	require.NoError(t, err)
	require.Equal(t, base, again)
	for _, change := range []func(*Vars){
		func(v *Vars) { v.Key = "other" }, func(v *Vars) { v.Target = "bo" }, func(v *Vars) { v.Reference = "r2" },
		func(v *Vars) { v.Payload = []byte(`{"text":"hi","amount":10.5}`) }, func(v *Vars) { v.RunID = "r2" },
	} {
		v := noteVars
		change(&v)
		got, err := c.WireHash(v)
		require.NoError(t, err)
		require.NotEqual(t, base, got)
	}
	other := mustParse(t, strings.Replace(sample, "env:CRM_TOKEN", "env:OTHER_TOKEN", 1)).Connectors["crm"]
	got, err := other.WireHash(noteVars)
	require.NoError(t, err)
	require.NotEqual(t, base, got, "a secret counts by its name")
}

func TestConnectorVersion(t *testing.T) {
	base := mustParse(t, sample).Connectors["crm"].Version
	for from, to := range map[string]string{
		"method: POST": "method: PUT", "${effect.target}/notes": "${effect.target}/memos", "Bearer ${env:CRM_TOKEN}": "Bearer ${env:OTHER}", "X-Run:": "X-Walk:",
		"fixed: 1.50": "fixed: 1.5", "on: true": "on: 'true'", "header: idempotency-key": "header: X-Key", "max_length: 64": "max_length: 65",
		"lifetime: 24h": "lifetime: 25h", "success: [200, 201]": "success: [200]",
	} {
		require.NotEqual(t, base, mustParse(t, with(t, from, to)).Connectors["crm"].Version, to)
	}
	for from, to := range map[string]string{
		"max_lag: 2m": "max_lag: 3m", "timeout: 10s": "timeout: 11s", "concurrency: 4": "concurrency: 5", "success: [200, 201]": "success: [201, 200]",
		"authorization:": "Authorization:", "provider_id: /id\n": "provider_id: /key\n", "repairs: 1": "repairs: 2",
	} {
		require.Equal(t, base, mustParse(t, with(t, from, to)).Connectors["crm"].Version, to)
	}
}

func TestJudgeLookup(t *testing.T) {
	crm := mustParse(t, sample).Connectors["crm"]
	byStatus := connectorWith(t, `url: "https://x.example/", lookup: {url: "https://x.example/", found: "status == 200 && response.ref == 'a'", absent: "status == 404", provider_id: /id, max_lag: 1s}`)
	both := connectorWith(t, `url: "https://x.example/", lookup: {url: "https://x.example/", found: "true", absent: "true", max_lag: 1s}`)
	for _, test := range []struct {
		name   string
		c      *Connector
		status int
		body   string
		want   Finding3
		fails  bool
	}{
		{"one", crm, 200, `{"results":[{"id":9007199254740993}]}`, Finding3{Found: true, ProviderID: "9007199254740993"}, false},
		{"text id", crm, 200, `{"results":[{"id":"n-1"}]}`, Finding3{Found: true, ProviderID: "n-1"}, false},
		{"no id", crm, 200, `{"results":[{}]}`, Finding3{Found: true}, false},
		{"none", crm, 200, `{"results":[]}`, Finding3{Absent: true}, false},
		{"two", crm, 200, `{"results":[{},{}]}`, Finding3{}, false},
		{"other shape", crm, 200, `{}`, Finding3{}, true},
		{"not json", crm, 200, `<html>`, Finding3{}, true},
		{"empty", crm, 200, ``, Finding3{}, true},
		{"error page that looks empty", crm, 500, `{"results":[]}`, Finding3{}, true},
		{"unauthorised", crm, 401, `{"results":[]}`, Finding3{}, true},
		{"not found by status", byStatus, 404, `gone`, Finding3{Absent: true}, false},
		{"found by status", byStatus, 200, `{"ref":"a","id":"7"}`, Finding3{Found: true, ProviderID: "7"}, false},
		{"foreign", byStatus, 200, `{"ref":"b"}`, Finding3{}, false},
		{"server error", byStatus, 503, `{}`, Finding3{}, false},
		{"contradiction", both, 200, `{}`, Finding3{}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.c.JudgeLookup(test.status, []byte(test.body))
			require.Equal(t, test.want, got)
			if test.fails {
				requireCode(t, err, holdpoint.CodeRender)
			} else {
				require.NoError(t, err)
			}
		})
	}
}

func TestChannelResolve(t *testing.T) {
	p := mustParse(t, sample)
	secrets := fakeSecrets{"file:/run/secrets/smtp": "pw\n", "env:HOOK": "https://x.example/h?t=1", "env:PAGER_SECRET": "whsec_x"}
	address, user, password, _, err := p.Channels["approvers"].Resolve(secrets)
	require.NoError(t, err)
	require.Equal(t, []string{"smtp://mail.acme.example:587", "holdpoint", "pw"}, []string{address, user, password})
	address, _, _, signing, err := p.Channels["direct"].Resolve(secrets)
	require.NoError(t, err)
	require.Equal(t, []string{"https://x.example/h?t=1", "whsec_x"}, []string{address, signing})
	require.Equal(t, []string{"env:HOOK", "env:PAGER_SECRET"}, p.Channels["direct"].MissingSecrets(nil))

	_, _, _, _, err = p.Channels["approvers"].Resolve(fakeSecrets{})
	requireCode(t, err, holdpoint.CodeUnavailable)
	require.Contains(t, err.Error(), "file:/run/secrets/smtp")
	_, _, _, _, err = p.Channels["direct"].Resolve(fakeSecrets{"env:HOOK": "ftp://hidden.example/", "env:PAGER_SECRET": "x"})
	requireCode(t, err, holdpoint.CodeInvalidPolicy)
	require.NotContains(t, err.Error(), "hidden")
}

func TestChannelURLs(t *testing.T) {
	for address, ok := range map[string]bool{
		"smtp://mail.example": true, "smtps://mail.example:465": true, "smtp://127.0.0.1:1025?tls=none": true, "smtp://localhost?tls=none": true, "smtp://[::1]:25?tls=none": true,
		"smtp://mail.example?tls=none": false, "smtp://127.0.0.1.evil.example?tls=none": false, "smtps://127.0.0.1?tls=none": false, "smtp://": false, "smtp:mail": false,
		"http://mail.example": false, "smtp://mail.example/x": false, "smtp://u@mail.example": false, "smtp://mail.example#x": false, "smtp://10.0.0.1?tls=none": false,
	} {
		require.Equal(t, ok, checkChannelURL(ChannelSMTP, address) == nil, address)
	}
	for address, ok := range map[string]bool{
		"https://x.example/a?b=c": true, "http://127.0.0.1:9/": true, "ftp://x.example": false, "https://": false, "https://a:b@x.example": false, "/x": false,
	} {
		require.Equal(t, ok, checkChannelURL(ChannelWebhook, address) == nil, address)
	}
}
