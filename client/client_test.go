package client_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
)

// answering serves one answer and remembers the last request.
func answering(t *testing.T, status int, header map[string]string, body string) (*client.Client, func() (*http.Request, string)) {
	t.Helper()
	var last *http.Request
	var sent []byte
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		last = r
		sent, _ = io.ReadAll(r.Body)
		for k, v := range header {
			w.Header().Set(k, v)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return client.New(s.URL+"/base/", "hp_token"), func() (*http.Request, string) { return last, string(sent) }
}

func code(t *testing.T, err error) *holdpoint.Error {
	t.Helper()
	var e *holdpoint.Error
	require.ErrorAs(t, err, &e)
	require.NotContains(t, err.Error(), "hp_token")
	require.NotContains(t, err.Error(), "s3cret")
	return e
}

const jsonType, problemType = "application/json", "application/problem+json"

func TestRequests(t *testing.T) {
	c, last := answering(t, 200, map[string]string{"Content-Type": jsonType}, `{}`)
	_, err := c.BeginStep(t.Context(), "r/1", "look up?", client.StepRequest{Work: client.Work{Owner: "<o>", Version: 3}})
	require.NoError(t, err)
	r, body := last()
	require.Equal(t, "POST", r.Method)
	require.Equal(t, "/base/v1/runs/r%2F1/steps/look%20up%3F/begin", r.URL.EscapedPath())
	require.Equal(t, "Bearer hp_token", r.Header.Get("Authorization"))
	require.Equal(t, jsonType, r.Header.Get("Content-Type"))
	require.JSONEq(t, `{"owner":"<o>","version":3}`, body)
	require.Contains(t, body, "<o>")

	_, err = c.Runs(t.Context(), client.RunQuery{Key: "a&b", Limit: 7})
	require.NoError(t, err)
	r, body = last()
	require.Equal(t, url.Values{"key": {"a&b"}, "limit": {"7"}}, r.URL.Query())
	require.Empty(t, body)
	require.Empty(t, r.Header.Get("Content-Type"))

	_, err = c.SetSwitch(t.Context(), "workflow:a", false, "why")
	require.NoError(t, err)
	r, body = last()
	require.Equal(t, "/base/v1/switches/workflow:a", r.URL.Path)
	require.JSONEq(t, `{"on":false,"reason":"why"}`, body)
}

func TestProblemsBecomeErrors(t *testing.T) {
	c, _ := answering(t, 409, map[string]string{"Content-Type": problemType, "Retry-After": "7"},
		`{"type":"about:blank","title":"Conflict","status":409,"code":"already_decided","detail":"It is settled.","request_id":"r-1","standing":{"decision":"reject"}}`)
	_, err := c.Decide(t.Context(), "a", client.DecisionRequest{})
	e := code(t, err)
	require.Equal(t, holdpoint.CodeAlreadyDecided, e.Code)
	require.Equal(t, "It is settled.", e.Message)
	require.Equal(t, map[string]any{"status": 409.0, "request_id": "r-1", "standing": map[string]any{"decision": "reject"}, "retry_after": 7.0}, e.Detail)
	require.Equal(t, 7*time.Second, client.RetryAfter(err))
	require.Zero(t, client.RetryAfter(nil))
}

func TestOutcomesAreAnswers(t *testing.T) {
	c, _ := answering(t, 409, map[string]string{"Content-Type": jsonType, "Retry-After": "12"}, `{"outcome":"busy","run":{"id":"r"}}`)
	a, err := c.Claim(t.Context(), client.ClaimRequest{Payload: json.RawMessage(`{}`)})
	require.NoError(t, err)
	require.Equal(t, holdpoint.Busy, a.Outcome)
	require.Equal(t, 12*time.Second, a.RetryAfter)
}

func TestForeignAnswersAreNotTrusted(t *testing.T) {
	for name, c := range map[string]struct {
		status       int
		media, body  string
		header, says string
	}{
		"a proxy's page":            {502, "text/html", "<p>s3cret</p>", "", "502"},
		"a page that says ok":       {200, "text/html", "<p>s3cret</p>", "", "200"},
		"a redirect":                {302, "", "", "/elsewhere", "302"},
		"broken JSON":               {200, jsonType, `{"id":`, "", "200"},
		"another shape":             {200, jsonType, `["s3cret"]`, "", "200"},
		"a problem without code":    {404, problemType, `{"title":"s3cret"}`, "", "404"},
		"a problem that is none":    {404, problemType, `s3cret`, "", "404"},
		"nothing where much is due": {204, "", "", "", "204"},
	} {
		t.Run(name, func(t *testing.T) {
			header := map[string]string{"Content-Type": c.media}
			if c.header != "" {
				header["Location"] = c.header
			}
			cl, last := answering(t, c.status, header, c.body)
			_, err := cl.Run(t.Context(), "r")
			e := code(t, err)
			require.Equal(t, holdpoint.CodeUnavailable, e.Code)
			require.Contains(t, e.Message, c.says)
			r, _ := last()
			require.Equal(t, "/base/v1/runs/r", r.URL.Path, "no redirect is followed")
		})
	}
}

func TestUnreachable(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	address := s.URL
	s.Close()
	_, err := client.New(address, "hp_token").Runs(t.Context(), client.RunQuery{Key: "s3cret"})
	require.Equal(t, holdpoint.CodeUnavailable, code(t, err).Code)
	for _, bad := range []string{"", "holdpoint", "http://", "http://a b", "/v1"} {
		_, err := client.New(bad, "hp_token").Me(t.Context())
		require.Equal(t, holdpoint.CodeInvalidRequest, code(t, err).Code, bad)
	}
	_, err = client.New(address, "").Claim(t.Context(), client.ClaimRequest{Payload: json.RawMessage(`{s3cret`)})
	require.Equal(t, holdpoint.CodeInvalidRequest, code(t, err).Code)
}

func TestDeletions(t *testing.T) {
	c, last := answering(t, 204, nil, "")
	require.NoError(t, c.RevokeRole(t.Context(), "a+b@acme.example", "auditor"))
	r, _ := last()
	require.Equal(t, "DELETE", r.Method)
	require.Equal(t, "/base/v1/users/a+b@acme.example/grants/auditor", r.URL.Path)
}
