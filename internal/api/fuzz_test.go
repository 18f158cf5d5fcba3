package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint/internal/httpserver"
)

// FuzzCall makes any call with any query, body and Authorization header. The world holds each answer to the document; no
// answer says that something is wrong with the server.
func FuzzCall(f *testing.F) {
	w := newWorld(f, Options{})
	all, prepared := routes(), w.examples()
	examples := make([]example, len(all))
	for i, rt := range all {
		examples[i] = prepared[rt.id]()
		f.Add(uint(i), "", []byte(examples[i].body), "")
	}
	handler := w.recorded(New(w.engine, Options{Limiter: httpserver.NewLimiter(1e9, 1e9)}).(*server), httpserver.Options{})
	f.Fuzz(func(t *testing.T, which uint, query string, body []byte, authorization string) {
		w.TB = t
		i := int(which % uint(len(all)))
		if authorization == "" && examples[i].who != "" {
			authorization = "Bearer " + w.tokens[examples[i].who]
		}
		r := httptest.NewRequest(method(all[i]), examples[i].path, strings.NewReader(string(body)))
		r.URL.RawQuery = query
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", authorization)
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, r)
		require.Less(t, rec.Code, http.StatusInternalServerError, "%s ?%s %q: %s", all[i].pattern, query, body, rec.Body)
	})
}

// FuzzCursor holds that a list begins at the first page only if no cursor is given.
func FuzzCursor(f *testing.F) {
	f.Add("xx")
	f.Add(nowhere)
	f.Add(strings.ToUpper("0198c1f0-6c1e-7d3a-9f0e-2f6f0a3c5b11"))
	f.Add("{" + nowhere + "}")
	f.Fuzz(func(t *testing.T, cursor string) {
		r := &http.Request{URL: httptest.NewRequest(http.MethodGet, "/v1/runs", http.NoBody).URL}
		q := r.URL.Query()
		q.Set("cursor", cursor)
		r.URL.RawQuery = q.Encode()
		got, err := readQuery(r, paging)
		if err != nil {
			require.Equal(t, http.StatusBadRequest, httpserver.NewProblem(err, "").Status)
			return
		}
		require.Equal(t, cursor, got["cursor"])
		require.True(t, cursor == "" || len(cursor) == 36)
	})
}
