package console

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Text has a contrast of at least 4.5 to what it stands on, and borders of fields at least 3 (WCAG 2.2, 1.4.3 and 1.4.11).
func TestContrast(t *testing.T) {
	raw, err := files.ReadFile("static/style.css")
	require.NoError(t, err)
	light, dark, ok := strings.Cut(string(raw), "prefers-color-scheme: dark")
	require.True(t, ok)
	for scheme, css := range map[string]string{"light": light, "dark": dark} {
		colours := map[string]float64{}
		for _, m := range regexp.MustCompile(`--([a-z-]+): #([0-9a-f]{6});`).FindAllStringSubmatch(css, -1) {
			colours[m[1]] = luminance(t, m[2])
		}
		require.Len(t, colours, 15, scheme)
		for _, c := range []struct {
			ink, ground string
			least       float64
		}{
			{"ink", "card", 7}, {"ink", "ground", 7}, {"ink", "soft", 4.5}, {"dim", "card", 4.5}, {"dim", "ground", 4.5}, {"dim", "soft", 4.5},
			{"accent", "card", 4.5}, {"accent", "ground", 4.5}, {"accent-ink", "accent", 4.5}, {"good", "good-soft", 4.5}, {"care", "care-soft", 4.5},
			{"bad", "bad-soft", 4.5}, {"good", "card", 4.5}, {"bad", "card", 4.5}, {"strong", "card", 3},
		} {
			a, b := colours[c.ink], colours[c.ground]
			require.GreaterOrEqual(t, (max(a, b)+.05)/(min(a, b)+.05), c.least, "%s: %s on %s", scheme, c.ink, c.ground)
		}
	}
}

// luminance is the relative luminance of a colour (WCAG 2.2).
func luminance(t *testing.T, hex string) float64 {
	t.Helper()
	sum := 0.0
	for i, weight := range []float64{.2126, .7152, .0722} {
		n, err := strconv.ParseUint(hex[2*i:2*i+2], 16, 8)
		require.NoError(t, err)
		c := float64(n) / 255
		if c <= .04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}
