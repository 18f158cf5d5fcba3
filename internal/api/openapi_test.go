package api

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the generated document")

// TestDocument holds openapi.json to the routes and types of the code.
func TestDocument(t *testing.T) {
	want, err := generate()
	require.NoError(t, err)
	again, err := generate()
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, again), "the generator is deterministic")
	if *update {
		require.NoError(t, os.WriteFile("openapi.json", want, 0o644))
		return
	}
	require.Equal(t, string(want), string(document), "openapi.json is not as generated; run go generate ./internal/api")
}

// TestDocumentAndRoutesAgree holds the embedded document to the mux in both directions, without the generator's help.
func TestDocumentAndRoutesAgree(t *testing.T) {
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			OperationID string
			Summary     string
			Parameters  []struct{ Name, In string }
			RequestBody *struct{ Content map[string]any }
			Responses   map[string]struct {
				Ref     string `json:"$ref"`
				Content map[string]any
			}
			Security *[]any
		}
	}
	require.NoError(t, json.Unmarshal(document, &doc))
	require.Equal(t, "3.1.0", doc.OpenAPI)
	mux := http.NewServeMux()
	inCode, ids := map[string]bool{}, map[string]bool{}
	for _, rt := range routes() {
		require.NotPanics(t, func() { mux.Handle(rt.pattern, http.NotFoundHandler()) })
		inCode[rt.pattern] = true
	}
	for path, item := range doc.Paths {
		for method, op := range item {
			pattern := strings.ToUpper(method) + " " + path
			require.True(t, inCode[pattern], "%s is described but not served", pattern)
			delete(inCode, pattern)
			require.False(t, ids[op.OperationID], "operationId %s is used twice", op.OperationID)
			ids[op.OperationID] = true
			require.NotEmpty(t, op.Summary, pattern)
			require.Equal(t, method == "post" || method == "put", op.RequestBody != nil, pattern)
			inPath := 0
			for _, p := range op.Parameters {
				if p.In == "path" {
					inPath++
					require.Contains(t, path, "{"+p.Name+"}")
				}
			}
			require.Equal(t, strings.Count(path, "{"), inPath, pattern)
			success := 0
			for status, r := range op.Responses {
				n, err := strconv.Atoi(status)
				require.NoError(t, err)
				if n < 300 {
					success++
				}
				if n >= 400 && r.Content["application/json"] == nil && r.Ref == "" {
					require.NotNil(t, r.Content["application/problem+json"], "%s %s", pattern, status)
				}
			}
			require.NotZero(t, success, pattern)
			for _, status := range []string{"429", "500"} {
				require.Contains(t, op.Responses, status, pattern)
			}
			if op.Security == nil {
				require.Contains(t, op.Responses, "401", pattern)
			}
		}
	}
	require.Empty(t, inCode, "served but not described")
}
