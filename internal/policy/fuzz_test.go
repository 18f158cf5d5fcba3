package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzParse holds that no document makes the parser fail in another way than by findings, and that a policy comes back
// exactly when none of them is an error.
func FuzzParse(f *testing.F) {
	f.Add([]byte(sample))
	for _, line := range strings.SplitAfter(sample, "\n") {
		f.Add([]byte(strings.Replace(sample, line, "", 1)))
	}
	for _, doc := range []string{
		"", "[]", "version: 1", "a: &a [*a]", "{? [a]: b}", "x: !!binary aGk=", "<<: {a: b}", "workflows: {w: {contract: [a]}}", "connectors: {c: {kind: http, url: '${${'}}",
		"connectors: {c: {kind: http, url: \"https://x/${'''\"}}", "workflows: {w: {effects: {e: {when: '((((((((((1))))))))))', for_each: '[1].map(x, x)'}}}}",
		"version: 1\n---\nversion: 1", "\xff", "a:\n\t- b", "workflows: {w: {gate: {on_expiry: escalate}}}",
	} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		begun := time.Now()
		p, findings := Parse(doc, sampleFiles, Options{})
		require.Less(t, time.Since(begun), fuzzTime)
		errors := 0
		for _, finding := range findings {
			require.Positive(t, finding.Line)
			require.Positive(t, finding.Column)
			require.NotEmpty(t, finding.Code)
			require.NotEmpty(t, finding.Message)
			if finding.Severity == SeverityError {
				errors++
			}
		}
		require.Equal(t, p == nil, errors > 0)
		if p == nil {
			return
		}
		require.Equal(t, Hash(doc, sampleFiles), p.Hash)
		again, _ := Parse(doc, sampleFiles, Options{})
		require.NotNil(t, again)
		for name, c := range p.Connectors {
			require.Equal(t, c.Version, again.Connectors[name].Version, "the same document gives the same versions")
		}
		for _, w := range p.Workflows {
			_, _ = w.Render(p, Input{Event: []byte(`{"a":[1.50]}`), Draft: []byte(`{}`), Run: runInfo})
		}
		for _, c := range p.Connectors {
			_, _ = c.Call(noteVars, named{})
			_, _ = c.LookupCall(noteVars, named{})
			_, _ = c.JudgeLookup(200, []byte(`{}`))
		}
	})
}
