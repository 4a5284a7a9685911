package main

import "github.com/ironlb/ironlb/speaker/bgp"

// joinBGP makes the client of ironlb-bgpd, where there is one. Its end changes nothing of what is announced.
func (p *process) joinBGP() error {
	if p.bgpSocket == "" {
		return nil
	}
	client := bgp.NewClient(bgp.ClientOptions{Socket: p.bgpSocket, Log: p.log, Kick: p.kick.Now, Metrics: p.registry})
	p.bgp = client
	p.run(client.Run)
	return nil
}
