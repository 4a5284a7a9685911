package health

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"

	"github.com/ironlb/ironlb/ipvs"
)

// newTransport opens a connection per request: a node that has lost its state must not appear healthy through an old
// one.
func newTransport() http.RoundTripper {
	return &http.Transport{
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 8 << 10,
	}
}

// newClient follows no redirect: the health of another server is irrelevant.
func newClient(transport http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// ask returns the weight of a node that responds with 200, and otherwise the reason. The body is not read.
func ask(ctx context.Context, client *http.Client, c Check) (uint32, error) {
	u := url.URL{Scheme: "http", Host: netip.AddrPortFrom(c.Addr, c.Port).String(), Path: c.Path}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("User-Agent", "ironlb-speaker")
	response, err := client.Do(request)
	if err != nil {
		if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
			err = wrapped.Err // without the URL, which the log line already has
		}
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("status %d", response.StatusCode)
	}
	return weight(response.Header.Get(weightHeader)), nil
}

// weight parses the header: 1 if it is missing or not a number, limited to the maximum weight of a real server.
func weight(header string) uint32 {
	n, err := strconv.ParseUint(header, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return ipvs.MaxWeight
	case err != nil:
		return 1
	}
	return uint32(min(n, ipvs.MaxWeight))
}
