package main

import "github.com/ironlb/ironlb/speaker/bgp"

// joinBGP creates the client of ironlb-bgpd, if configured. Its end does not change the advertisements.
func (p *process) joinBGP() error {
	if p.bgpSocket == "" {
		return nil
	}
	client := bgp.NewClient(bgp.ClientOptions{Socket: p.bgpSocket, Log: p.log, Wake: p.trigger.Now, Metrics: p.registry})
	p.bgp = client
	p.run(client.Run)
	return nil
}
