package kernel

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// settings returns the settings of a virtual server; the error is ESRCH if there is none. Always repeated, it must take
// less time than a request of the library (BenchmarkList).
func (c *conn) settings(key ipvs.Key) (ipvs.Settings, error) {
	if key.Addr.Is4() && optionsFit {
		if settings, err := c.settingsOption(key); err == nil || errors.Is(err, unix.ESRCH) {
			return settings, err
		}
	}
	return c.service(key)
}

// service is settings for either family.
func (c *conn) service(key ipvs.Key) (settings ipvs.Settings, err error) {
	start := len(c.out)
	c.begin(cmdGetService, unix.NLM_F_ACK)
	c.out = appendService(c.out, key, nil)
	endRequest(c.out, start)
	err = errMessage
	sent := c.exchange(func(message []byte) {
		settings, err = readSettings(message)
	}, func(_ uint32, errno unix.Errno) { err = errno })
	if sent != nil {
		c.drain()
		return ipvs.Settings{}, sent
	}
	return settings, err
}

// readSettings parses the settings of a virtual server.
func readSettings(message []byte) (settings ipvs.Settings, err error) {
	if len(message) < genlHeader {
		return settings, errMessage
	}
	for kind, nest := range attributes(message[genlHeader:]) {
		if kind != attrService {
			continue
		}
		for kind, v := range attributes(nest) {
			switch kind {
			case svcScheduler:
				settings.Scheduler = unix.ByteSliceToString(v)
			case svcFlags:
				settings.Flags = ipvs.Flags(uint32Of(v)) &^ ipvs.Hashed
			case svcTimeout:
				settings.Timeout = uint32Of(v)
			}
		}
	}
	if settings.Scheduler == "" {
		return settings, errMessage
	}
	return persistent(settings), nil
}

// persistent returns the settings without a time-out that has no effect: the kernel keeps one without persistence. Like
// ipvsadm, this package ignores it.
func persistent(settings ipvs.Settings) ipvs.Settings {
	if settings.Flags&ipvs.Persistent == 0 {
		settings.Timeout = 0
	}
	return settings
}
