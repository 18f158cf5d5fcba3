package httpcall_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/holdpoint/holdpoint/connector"
	"github.com/holdpoint/holdpoint/connector/connectortest"
	"github.com/holdpoint/holdpoint/connector/httpcall"
	"github.com/holdpoint/holdpoint/connector/mirror"
	"github.com/holdpoint/holdpoint/internal/egress"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func loopback() *egress.Guard {
	return &egress.Guard{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
}

// config is a connector as the conformance suite wants it.
func config(base string) httpcall.Config {
	return httpcall.Config{
		Name: "crm",
		Render: func(v connector.Vars) (httpcall.Wire, error) {
			return httpcall.Wire{
				Method: "POST", URL: base + connectortest.SuitePath, Body: v.Payload,
				Header: map[string]string{mirror.KeyHeader: v.Key},
			}, nil
		},
		WireHash: func(v connector.Vars) (string, error) {
			sum := sha256.Sum256(append([]byte(v.Key+"\n"), v.Payload...))
			return hex.EncodeToString(sum[:]), nil
		},
		RenderLookup: func(v connector.Vars) (httpcall.Wire, error) {
			return httpcall.Wire{URL: base + mirror.LookupPath + "?ref=" + url.QueryEscape(v.Reference)}, nil
		},
		JudgeLookup: func(_ int, body []byte) (found, absent bool, id string, err error) {
			var doc struct {
				Results []struct {
					ID string `json:"id"`
				} `json:"results"`
			}
			if err := json.Unmarshal(body, &doc); err != nil {
				return false, false, "", err
			}
			if len(doc.Results) == 1 {
				id = doc.Results[0].ID
			}
			return len(doc.Results) == 1, len(doc.Results) == 0, id, nil
		},
		Success:    []int{200, 201},
		ProviderID: "/id",
		Timeout:    connectortest.SuiteTimeout,
		Guard:      loopback(),
	}
}

func newConnector(t *testing.T, cfg httpcall.Config) *httpcall.Connector {
	t.Helper()
	c := httpcall.New(cfg)
	t.Cleanup(c.Close)
	return c
}

func prepare(t *testing.T, c connector.Connector, v connector.Vars) connector.Call {
	t.Helper()
	call, err := c.Prepare(v)
	require.NoError(t, err)
	return call
}

func soon() time.Time { return time.Now().Add(time.Minute) }

func TestConformance(t *testing.T) {
	connectortest.Run(t, func(base string) connector.Connector { return httpcall.New(config(base)) })
}
