package httpserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/payload"
)

// declaredCodes reads the codes and the statuses that their comments give from package holdpoint's source.
func declaredCodes(t *testing.T) map[holdpoint.Code]int {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../errors.go", nil, parser.ParseComments)
	require.NoError(t, err)
	codes := map[holdpoint.Code]int{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || fmt.Sprint(spec.Type) != "Code" {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		require.NoError(t, err)
		status, err := strconv.Atoi(strings.TrimSpace(spec.Comment.Text())[:3])
		require.NoError(t, err)
		codes[holdpoint.Code(value)] = status
		return true
	})
	require.NotEmpty(t, codes)
	return codes
}

func TestStatusesAreThoseOfTheCodes(t *testing.T) {
	require.Equal(t, declaredCodes(t), Statuses)
	require.Equal(t, http.StatusInternalServerError, Status("invented"))
}

func TestErrorsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/errors.md")
	require.NoError(t, err)
	documented := map[holdpoint.Code]int{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([0-9]{3}) \\| [^|]{10,} \\| [^|]{10,} \\|$").FindAllStringSubmatch(string(page), -1) {
		status, err := strconv.Atoi(m[2])
		require.NoError(t, err)
		require.NotContains(t, documented, holdpoint.Code(m[1]), "twice on the page")
		documented[holdpoint.Code(m[1])] = status
	}
	require.Equal(t, declaredCodes(t), documented)
}

// exchange runs one request through Wrap and returns the answer and the log.
func exchange(t *testing.T, h http.Handler, r *http.Request) (*http.Response, string) {
	t.Helper()
	var log bytes.Buffer
	w := httptest.NewRecorder()
	Wrap(h, Options{Log: slog.New(slog.NewJSONHandler(&log, nil)), MaxBody: 1 << 20}).ServeHTTP(w, r)
	return w.Result(), log.String()
}

func problemOf(t *testing.T, resp *http.Response) map[string]any {
	t.Helper()
	require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
	var p map[string]any
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&p))
	require.Equal(t, float64(resp.StatusCode), p["status"])
	return p
}

func TestRenderShowsWhatTheCallerMaySee(t *testing.T) {
	for name, c := range map[string]struct {
		err        error
		status     int
		code       string
		retryAfter string
		extra      map[string]any
		logged     string
	}{
		"typed": {holdpoint.Errorf(holdpoint.CodeLeaseLost, "stop").With("version", 3), 409, "lease_lost", "", map[string]any{"version": 3.0}, ""},
		"a detail never replaces a member": {holdpoint.Errorf(holdpoint.CodeExists, "there").With("status", 200).With("code", "x"), 409, "exists", "",
			nil, ""},
		"busy":         {holdpoint.Errorf(holdpoint.CodeBusy, "later").With("retry_after", 7), 409, "busy", "7", map[string]any{"retry_after": 7.0}, ""},
		"rate limited": {holdpoint.Errorf(holdpoint.CodeRateLimited, "later"), 429, "rate_limited", "1", nil, ""},
		"unavailable":  {holdpoint.Errorf(holdpoint.CodeUnavailable, "repeat").Wrap(errors.New("disk full")), 503, "unavailable", "1", nil, "disk full"},
		"foreign":      {errors.New("pq: secret detail"), 500, "internal", "", nil, "pq: secret detail"},
		"internal":     {holdpoint.Errorf(holdpoint.CodeInternal, "a secret fault"), 500, "internal", "", nil, "a secret fault"},
		"joined":       {errors.Join(errors.New("secret"), holdpoint.Errorf(holdpoint.CodeForbidden, "no")), 403, "forbidden", "", nil, ""},
		"too large":    {fmt.Errorf("read: %w", &http.MaxBytesError{Limit: 10}), 413, "too_large", "", nil, ""},
		"deadline":     {fmt.Errorf("secret: %w", http.ErrHandlerTimeout), 500, "internal", "", nil, "secret"},
		"unencodable":  {holdpoint.Errorf(holdpoint.CodeExists, "there").With("f", func() {}), 409, "exists", "", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			resp, log := exchange(t, Handler(func(http.ResponseWriter, *http.Request) error { return c.err }), httptest.NewRequest("GET", "/", nil))
			require.Equal(t, c.status, resp.StatusCode)
			require.Equal(t, c.retryAfter, resp.Header.Get("Retry-After"))
			require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
			p := problemOf(t, resp)
			require.Equal(t, c.code, p["code"])
			require.Equal(t, resp.Header.Get("X-Request-Id"), p["request_id"])
			require.Equal(t, http.StatusText(c.status), p["title"])
			require.NotEmpty(t, p["detail"])
			require.NotContains(t, fmt.Sprint(p), "secret")
			for k, v := range c.extra {
				require.Equal(t, v, p[k])
			}
			if c.logged != "" {
				require.Contains(t, log, c.logged)
				require.Contains(t, log, `"msg":"call failed"`)
			} else {
				require.NotContains(t, log, "call failed")
			}
		})
	}
}

func TestUnauthenticatedNamesTheScheme(t *testing.T) {
	resp, _ := exchange(t, Handler(func(http.ResponseWriter, *http.Request) error {
		return holdpoint.Errorf(holdpoint.CodeUnauthenticated, "send a token")
	}), httptest.NewRequest("GET", "/", nil))
	require.Equal(t, `Bearer realm="holdpoint"`, resp.Header.Get("WWW-Authenticate"))
}

func TestRequestIDs(t *testing.T) {
	ok := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, RequestID(r.Context())) })
	for given, kept := range map[string]bool{
		"abc-1.2_Z": true, strings.Repeat("a", 64): true, "": false, strings.Repeat("a", 65): false, "a b": false, "a\"b": false, "ä": false,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-Request-Id", given)
		resp, log := exchange(t, ok, r)
		id := resp.Header.Get("X-Request-Id")
		require.Equal(t, kept, id == given, "%q gave %q", given, id)
		require.NotEmpty(t, id)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, id, string(body))
		require.Contains(t, log, id)
	}
	require.Empty(t, RequestID(t.Context()))
}

func TestAccessLogNamesTheRouteAndNeverTheURL(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("POST /approve/{token}", Handler(func(w http.ResponseWriter, r *http.Request) error {
		SetActor(r.Context(), "key-1")
		return WriteJSON(w, http.StatusCreated, map[string]string{})
	}))
	_, log := exchange(t, mux, httptest.NewRequest("POST", "/approve/s3cret?key=s3cret", nil))
	var line map[string]any
	require.NoError(t, json.Unmarshal([]byte(log), &line))
	delete(line, "time")
	require.IsType(t, 0.0, line["duration_ms"])
	delete(line, "duration_ms")
	require.NotEmpty(t, line["request_id"])
	delete(line, "request_id")
	require.Equal(t, map[string]any{"level": "INFO", "msg": "request", "method": "POST", "route": "POST /approve/{token}", "status": 201.0,
		"actor": "key-1"}, line)
	_, log = exchange(t, mux, httptest.NewRequest("S3CRET", "/s3cret", nil))
	require.NotContains(t, strings.ToLower(log), "s3cret")
}

func TestPanicsAreContained(t *testing.T) {
	t.Run("before the answer", func(t *testing.T) {
		resp, log := exchange(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("s3cret") }), httptest.NewRequest("GET", "/", nil))
		require.Equal(t, "internal", problemOf(t, resp)["code"])
		require.Contains(t, log, "TestPanicsAreContained")
		require.NotContains(t, log, "s3cret")
		require.Contains(t, log, `"status":500`)
	})
	t.Run("inside the answer", func(t *testing.T) {
		require.PanicsWithValue(t, http.ErrAbortHandler, func() {
			exchange(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "half")
				var p *int
				_ = *p
			}), httptest.NewRequest("GET", "/", nil))
		})
	})
	t.Run("abort", func(t *testing.T) {
		require.PanicsWithValue(t, http.ErrAbortHandler, func() {
			exchange(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), httptest.NewRequest("GET", "/", nil))
		})
	})
}

func TestErrorAfterTheAnswerHasBegunIsOnlyLogged(t *testing.T) {
	resp, log := exchange(t, Handler(func(w http.ResponseWriter, _ *http.Request) error {
		_, _ = io.WriteString(w, "half")
		return errors.New("late")
	}), httptest.NewRequest("GET", "/", nil))
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "half", string(body))
	require.Contains(t, log, "late")
}

func TestSecurityHeaders(t *testing.T) {
	for _, secure := range []bool{false, true} {
		w := httptest.NewRecorder()
		Wrap(http.NotFoundHandler(), Options{Secure: secure}).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		h := w.Result().Header
		require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"))
		require.Equal(t, "DENY", h.Get("X-Frame-Options"))
		require.Equal(t, "no-referrer", h.Get("Referrer-Policy"))
		require.Contains(t, h.Get("Content-Security-Policy"), "default-src 'none'")
		require.Equal(t, secure, h.Get("Strict-Transport-Security") != "")
	}
}

func TestServerBoundsConnectionsAsDocumented(t *testing.T) {
	s := NewServer(http.NotFoundHandler(), nil)
	page, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	for what, limit := range map[string]string{
		"head of a request, URL included": fmt.Sprintf("%d KiB", s.MaxHeaderBytes>>10), "time to send the head": s.ReadHeaderTimeout.String(),
		"time to send the whole request": s.ReadTimeout.String(), "time for the whole exchange": s.WriteTimeout.String(), "idle connection": s.IdleTimeout.String(),
	} {
		require.NotContains(t, []string{"0s", "0 KiB"}, limit)
		require.Contains(t, string(page), "| "+what+" | "+limit+" |")
	}
}

type inner struct {
	Deep  string `json:"deep"`
	Inner *inner `json:"inner,omitempty"`
}

type embedded struct {
	Owner string `json:"owner"`
}

type request struct {
	embedded
	Embedded
	Name    string              `json:"name"`
	Count   int64               `json:"count"`
	On      *bool               `json:"on"`
	Wait    *holdpoint.Duration `json:"wait"`
	Raw     json.RawMessage     `json:"raw"`
	Inner   *inner              `json:"inner"`
	List    []inner             `json:"list"`
	Files   map[string]string   `json:"files"`
	Secret  string              `json:"-"`
	private string
}

// Embedded is promoted as the requests of package engine promote theirs.
type Embedded struct {
	Version int64 `json:"version"`
}

func decode(body, contentType string, limit int64, v any) error {
	r := httptest.NewRequest("POST", "/", strings.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	return Decode(httptest.NewRecorder(), r, limit, func(b []byte) error { return payload.Check(b, payload.Limits{}) }, v)
}

func TestDecode(t *testing.T) {
	var got request
	require.NoError(t, decode(`{"version":7,"name":"n","count":2,"on":false,"wait":"90s","raw":{"Any":[1.50]},"inner":{"deep":"d","inner":{"deep":"e"}},
		"list":[{"deep":"x"}],"files":{"A b":"c"}}`, "application/json; charset=UTF-8", 1<<10, &got))
	require.Equal(t, int64(7), got.Version)
	require.Equal(t, "e", got.Inner.Inner.Deep)
	require.Equal(t, `{"Any":[1.50]}`, string(got.Raw))
	require.Equal(t, holdpoint.Duration(90*time.Second), *got.Wait)
	require.False(t, *got.On)
	require.Equal(t, map[string]string{"A b": "c"}, got.Files)
	require.Empty(t, got.private)
}

func TestDecodeRefuses(t *testing.T) {
	const js = "application/json"
	for name, c := range map[string]struct {
		body, media string
		code        holdpoint.Code
		says        string
	}{
		"no media type":      {`{}`, "", holdpoint.CodeUnsupportedMedia, "application/json"},
		"form":               {`{}`, "application/x-www-form-urlencoded", holdpoint.CodeUnsupportedMedia, ""},
		"other json":         {`{}`, "application/merge-patch+json", holdpoint.CodeUnsupportedMedia, ""},
		"latin-1":            {`{}`, "application/json; charset=iso-8859-1", holdpoint.CodeUnsupportedMedia, ""},
		"broken media type":  {`{}`, "application/json; charset", holdpoint.CodeUnsupportedMedia, ""},
		"too large":          {`{"name":"` + strings.Repeat("x", 2000) + `"}`, js, holdpoint.CodeTooLarge, "1024"},
		"empty":              {``, js, holdpoint.CodeInvalidJSON, ""},
		"broken":             {`{"name":`, js, holdpoint.CodeInvalidJSON, ""},
		"trailing":           {`{} {}`, js, holdpoint.CodeInvalidJSON, ""},
		"duplicate":          {`{"name":"a","name":"b"}`, js, holdpoint.CodeInvalidJSON, ""},
		"nested too deep":    {`{"raw":` + strings.Repeat("[", 120) + strings.Repeat("]", 120) + `}`, js, holdpoint.CodeTooDeep, ""},
		"a list":             {`[]`, js, holdpoint.CodeInvalidRequest, "one JSON object"},
		"null":               {`null`, js, holdpoint.CodeInvalidRequest, "one JSON object"},
		"a number":           {`1`, js, holdpoint.CodeInvalidRequest, "one JSON object"},
		"unknown":            {`{"naem":"s3cret"}`, js, holdpoint.CodeInvalidRequest, "naem is not a field"},
		"unknown below":      {`{"inner":{"x":1}}`, js, holdpoint.CodeInvalidRequest, "inner.x is not"},
		"unknown far below":  {`{"inner":{"deep":"","inner":{"x":1}}}`, js, holdpoint.CodeInvalidRequest, "inner.inner.x is not"},
		"unknown in a list":  {`{"list":[{},{"x":1}]}`, js, holdpoint.CodeInvalidRequest, "list.1.x is not"},
		"another case":       {`{"Name":"a"}`, js, holdpoint.CodeInvalidRequest, "Name is not a field"},
		"hidden":             {`{"Secret":"a"}`, js, holdpoint.CodeInvalidRequest, "Secret is not"},
		"private":            {`{"private":"a"}`, js, holdpoint.CodeInvalidRequest, "private is not"},
		"not promoted":       {`{"owner":"a"}`, js, holdpoint.CodeInvalidRequest, "owner is not"},
		"wrong type":         {`{"name":53}`, js, holdpoint.CodeInvalidRequest, "name must be a text"},
		"wrong type below":   {`{"inner":{"deep":true}}`, js, holdpoint.CodeInvalidRequest, "inner.deep must be a text"},
		"wrong promoted":     {`{"version":"s3cret"}`, js, holdpoint.CodeInvalidRequest, "ersion must be a whole number"},
		"not whole":          {`{"count":1.5}`, js, holdpoint.CodeInvalidRequest, "count must be a whole number"},
		"text as object":     {`{"inner":"s3cret"}`, js, holdpoint.CodeInvalidRequest, "inner must be an object"},
		"text as list":       {`{"list":"s3cret"}`, js, holdpoint.CodeInvalidRequest, "list must be a list"},
		"text as flag":       {`{"on":"s3cret"}`, js, holdpoint.CodeInvalidRequest, "on must be true or false"},
		"number as duration": {`{"wait":90}`, js, holdpoint.CodeInvalidRequest, "wait must be a text"},
		"odd duration":       {`{"wait":"s3cret"}`, js, holdpoint.CodeInvalidRequest, "durations"},
		"a long odd name":    {`{"` + strings.Repeat("ä", 300) + "\u202e" + `":1}`, js, holdpoint.CodeInvalidRequest, "…"},
	} {
		t.Run(name, func(t *testing.T) {
			err := decode(c.body, c.media, 1<<10, &request{})
			require.ErrorIs(t, err, &holdpoint.Error{Code: c.code})
			require.ErrorContains(t, err, c.says)
			require.NotContains(t, err.Error(), "s3cret")
			require.NotContains(t, err.Error(), "\u202e")
		})
	}
	r := httptest.NewRequest("POST", "/", strings.NewReader("{}"))
	r.Header.Set("Content-Type", js)
	r.Header.Set("Content-Encoding", "gzip")
	_, err := Body(httptest.NewRecorder(), r, 100)
	require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeUnsupportedMedia})
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{}`, `{"name":"n","inner":{"deep":"d"},"list":[{}]}`, `{"wait":"1h","on":null}`, `{"Name":1}`, `[{}]`, "{\"\u0000\":1}", `{"count":1e400}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		var v request
		err := decode(body, "application/json", 1<<16, &v)
		if err != nil {
			p := NewProblem(err, "id")
			require.Less(t, p.Status, http.StatusInternalServerError, "%v", err)
			return
		}
		var members map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(body), &members))
		fields := []string{"version", "name", "count", "on", "wait", "raw", "inner", "list", "files"}
		for name := range members {
			require.Contains(t, fields, name)
		}
	})
}

func TestFilledWritesEmptyListsAndChangesNothing(t *testing.T) {
	type leaf struct {
		Items []string       `json:"items"`
		Maps  map[string]int `json:"maps"`
		At    time.Time      `json:"at"`
		Raw   []byte         `json:"raw"`
	}
	type tree struct {
		leaf
		Leaf   *leaf           `json:"leaf"`
		None   *leaf           `json:"none"`
		Leaves []leaf          `json:"leaves"`
		Raw    json.RawMessage `json:"raw_json,omitempty"`
		Hidden []string        `json:"-"`
	}
	in := tree{Leaf: &leaf{}, Leaves: []leaf{{Items: []string{"a"}}, {}}}
	w := httptest.NewRecorder()
	require.NoError(t, WriteJSON(w, http.StatusOK, in))
	at := `"at":"0001-01-01T00:00:00Z","raw":null`
	require.JSONEq(t, `{"leaf":{"items":[],"maps":{},`+at+`},"none":null,"leaves":[{"items":["a"],"maps":{},`+at+`},{"items":[],"maps":{},`+at+`}]}`,
		strings.Replace(w.Body.String(), `"items":null,"maps":null,`+at+`,`, "", 1)) // an unexported embedded struct is not reached
	require.Nil(t, in.Leaf.Items)
	require.Nil(t, in.Leaves[1].Items)
	require.Nil(t, Filled(nil))
}

func TestLimiter(t *testing.T) {
	now := time.Unix(0, 0)
	l := NewLimiter(2, 3)
	for range 3 {
		require.NoError(t, l.allow("a", now))
	}
	err := l.allow("a", now)
	require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeRateLimited})
	var e *holdpoint.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, 1, e.Detail["retry_after"])
	require.NoError(t, l.allow("b", now), "another caller has a bucket of its own")
	require.NoError(t, l.allow("a", now.Add(500*time.Millisecond)), "a refused call takes nothing")

	l = NewLimiter(1, 1)
	l.size = 2
	for _, caller := range []string{"a", "b", "c"} {
		require.NoError(t, l.allow(caller, now))
	}
	require.Error(t, l.allow("d", now), "the table is full, so c and d share one bucket")
	require.Len(t, l.callers, 2)
	require.NoError(t, l.allow("d", now.Add(2*time.Second)), "idle callers have made room")
	require.Contains(t, l.callers, "d")
	require.NotContains(t, l.callers, "a")

	l = NewLimiter(0, 0)
	require.EqualValues(t, DefaultRate, l.rate)
	require.Equal(t, DefaultBurst, l.burst)
	require.NoError(t, l.Allow("x"))
}

func TestAddress(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1:99": "address 192.0.2.1", "[2001:db8:1:2:3::4]:99": "address 2001:db8:1:2::/64", "[::ffff:192.0.2.1]:99": "address 192.0.2.1",
		"[fe80::1%eth0]:9": "address fe80::/64", "@": "address unknown", "": "address unknown",
	} {
		require.Equal(t, want, Address(&http.Request{RemoteAddr: remote}))
	}
}

func TestRetrySeconds(t *testing.T) {
	for d, want := range map[time.Duration]int{0: 1, -time.Second: 1, time.Millisecond: 1, time.Second: 1, 1001 * time.Millisecond: 2} {
		require.Equal(t, want, RetrySeconds(d))
	}
}
