package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint/client"
)

// TestTheClientIsComplete calls each method of package client and holds the requests to the document: each operation has
// a method, and no method calls anything else.
func TestTheClientIsComplete(t *testing.T) {
	mux, ids := http.NewServeMux(), map[string]string{}
	var called []string
	for _, rt := range routes() {
		ids[rt.pattern] = rt.id
		mux.HandleFunc(rt.pattern, func(w http.ResponseWriter, r *http.Request) {
			called = append(called, rt.id)
			require.Equal(t, rt.request != nil && !rt.optional, r.ContentLength > 0, "%s: a body where one is due", rt.id)
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte("{}"))
		})
	}
	s := httptest.NewServer(mux)
	defer s.Close()
	c := reflect.ValueOf(client.New(s.URL, "hp_x"))
	methods := map[string][]string{}
	for i := range c.NumMethod() {
		name := c.Type().Method(i).Name
		for _, text := range []string{"x", ""} { // "" may name another operation: the tenant's evidence
			called = nil
			args := []reflect.Value{reflect.ValueOf(context.Background())}
			for n := 1; n < c.Method(i).Type().NumIn(); n++ {
				v := reflect.New(c.Method(i).Type().In(n)).Elem()
				if v.Kind() == reflect.String {
					v.SetString(text)
				}
				fill(v)
				args = append(args, v)
			}
			out := c.Method(i).Call(args)
			if text == "" && len(called) == 0 {
				continue // a path without its value
			}
			require.Len(t, called, 1, "%s makes exactly one request that is served", name)
			err, _ := out[len(out)-1].Interface().(error)
			require.NoError(t, err, name)
			methods[called[0]] = append(methods[called[0]], name)
		}
	}
	for _, id := range ids {
		require.NotEmpty(t, methods[id], "package client lacks %s", id)
	}
}

// fill gives raw JSON a value, so that a request can be written.
func fill(v reflect.Value) {
	if v.Kind() != reflect.Struct {
		return
	}
	for i := range v.NumField() {
		f := v.Field(i)
		switch {
		case f.Type().Kind() == reflect.Struct:
			fill(f)
		case strings.HasSuffix(f.Type().String(), "RawMessage"):
			f.SetBytes([]byte("{}"))
		}
	}
}
