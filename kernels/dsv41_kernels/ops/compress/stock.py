"""placeholder replaced below"""
STOCKS = ()
