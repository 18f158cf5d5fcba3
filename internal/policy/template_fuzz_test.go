package policy

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fuzzTime is the longest that one small template may take, on a slow machine under the fuzzer.
const fuzzTime = 30 * time.Second

// FuzzTemplate holds that a template compiles or is refused, prints as it was written, and renders in bounded time
// into exactly the one member that it stands in: nothing that it reads can break the JSON around it open.
func FuzzTemplate(f *testing.F) {
	for _, source := range []string{"${event.customer.email}", "Hello ${draft.name}, ${event.n + 1}", "${'}'}", "${", "${{'a': [1, 2.50]}}", "${env:CRM_TOKEN}",
		"${event.a.map(x, x + x)}", "${string(event.n)}", "${event.a.join(',')}", "${[1,2,3].map(a, [1,2,3].map(b, [a, b]))}", "${has(event.a) ? event.a : 'none'}",
		"${event.text.replace('a', event.text)}", "${'''}'''}", "${duration('1h') > duration('1m')}", "${timestamp('2026-01-01T00:00:00Z').getFullYear()}"} {
		f.Add(source, []byte(`{"customer":{"email":"a@b"},"n":1.50,"a":["x",1e400],"text":"\",\"b\":1"}`))
	}
	env, err := workflowEnv()
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, source string, event []byte) {
		if len(source) > maxExpression || len(event) > 1<<16 {
			return
		}
		begun := time.Now()
		pieces, err := splitTemplate(source)
		if err != nil {
			return
		}
		var whole text
		for i, piece := range pieces {
			if i%2 == 0 {
				if piece != "" {
					whole = append(whole, part{literal: piece})
				}
				continue
			}
			x, err := compile(env, piece)
			if err != nil {
				require.NotEmpty(t, err.Error())
				return
			}
			require.NotContains(t, x.reads, "effect", "not a variable of this place")
			whole = append(whole, part{expr: x})
		}
		require.Equal(t, source, whole.String())
		value, err := decode(event)
		if err != nil {
			return
		}
		exact := adapter{exact: true}
		vars := map[string]any{"event": exact.NativeToValue(value), "draft": exact.NativeToValue(map[string]any{}),
			"run": exact.NativeToValue(map[string]any{"id": "r", "key": "k", "workflow": "w", "tenant": "t"})}
		tree := tree{kind: treeMap, members: []member{{"only", tree{kind: treeText, text: whole}}}}
		out, err := tree.render(nil, vars, nil)
		require.Less(t, time.Since(begun), fuzzTime)
		if err != nil {
			return
		}
		again, err := tree.render(nil, vars, nil)
		require.NoError(t, err)
		require.Equal(t, string(out), string(again), "the same input gives the same bytes")
		var members map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(out, &members), "%s", out)
		require.Len(t, members, 1)
		require.Contains(t, members, "only")
	})
}

// FuzzDuration holds that a duration is longer than nothing, bounded, and the same when it is written in Go's notation.
func FuzzDuration(f *testing.F) {
	for _, s := range []string{"30d", "1h30m", "0s", "-1h", "1.5h", "9999999999h", "1d1d", "", "1", "1µs", "24h 5m", "1d-1h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDuration(s)
		if err != nil {
			return
		}
		require.Positive(t, d)
		require.LessOrEqual(t, d, maxSpan)
		again, err := ParseDuration(d.String())
		require.NoError(t, err, "%s", d)
		require.Equal(t, d, again)
	})
}
